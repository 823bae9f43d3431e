"""The wheel: builds, installs, and carries what it should."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q",
         "-w", folder, ROOT],
        check=True,
    )  # fmt: skip
    return next(folder.glob("pixalign-*.whl"))


def test_wheel_holds_the_package_and_its_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "pixalign/config.py" in names
    assert "pixalign/py.typed" in names
    for file in ("classes.json", "noto.webp", "fluent.webp", "LICENSES.md"):
        assert f"pixalign/scenes/data/{file}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    weights = [Path(name).parent for name in names if name.endswith(".safetensors")]
    model = Path("pixalign/backbones/weights/sd1-like")
    assert sorted(weights) == [model / part for part in ("text_encoder", "unet", "vae")]
    for file in (ROOT / "src" / model).rglob("*.*"):
        assert str(file.relative_to(ROOT / "src")) in names
    assert f"{model}/model_index.json" in names
    assert not any(name.startswith(("tests", "lab")) for name in names)


def test_wheel_installs_and_runs(wheel, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", tmp_path, wheel],
        check=True,
    )
    code = """
import pixalign
from pixalign.backbones.locations import EMBEDDED, models_root
print(pixalign.__file__, (EMBEDDED / "unet").is_dir(), models_root() is None)
pixalign.AlignConfig.official()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.startswith(str(tmp_path))
    assert done.stdout.endswith("True True\n")


def required(names, found=None):
    """Distributions by name: what requirements bring along, without extras that nobody asks for."""
    found = {} if found is None else found
    for text in names:
        requirement = Requirement(text)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = requirement.extras or {""}
        marker = requirement.marker
        if name in found or (marker and not any(marker.evaluate({"extra": e}) for e in extras)):
            continue
        found[name] = distribution(name)
        required(found[name].requires or [], found)
    return found


def test_a_wheel_needs_nothing_that_it_does_not_ask_for(wheel, tmp_path):
    """With no package in reach but the declared ones and theirs, a picture is aligned."""
    alone = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(alone)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    distributions = required(declared)
    assert {"torch", "diffusers", "numpy"} <= distributions.keys()
    assert not {"peft", "matplotlib", "scipy"} & distributions.keys()
    for found in distributions.values():
        for part in {file.parts[0] for file in found.files if file.parts[0] != ".."}:
            if part != "__pycache__" and not (alone / part).exists():
                (alone / part).symlink_to(found.locate_file(part))
    code = """
from pixalign.cli import app
for words in (
    "scenes --count 1 --out scenes",
    "segment scenes/00000.png taco chair --preset fast --out out",
    "label scenes taco --preset fast --format png --out labels",
):
    assert not app(words.split(), standalone_mode=False)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(alone), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "mask.png").is_file()
    assert list((tmp_path / "labels" / "png" / "masks").glob("*.png"))


def test_versions_agree():
    import pixalign

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert pixalign.__version__ == declared
    assert f"## {declared} - " in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {declared}\n" in (ROOT / "CITATION.cff").read_text()
    for page in (ROOT / "README.md", *(ROOT / "docs" / "start").glob("*.md")):
        named = re.findall(r"pixalign-([\d.]+)-py3", page.read_text(encoding="utf-8"))
        assert set(named) <= {declared}, page
