"""The wheel: builds, installs, and carries what it should."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


def test_versions_agree():
    import tomllib

    import pixalign

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert pixalign.__version__ == declared
    assert f"## {declared}" in (ROOT / "CHANGELOG.md").read_text()
