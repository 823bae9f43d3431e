"""The reference names everything, and the site loads nothing from outside."""

import dataclasses
import re
import runpy
import shutil
import subprocess
import sys

import pytest

import pixalign as pa
from documents import ROOT
from pixalign.config import FALLBACK, MODEL_SETTINGS
from pixalign.methods import METHODS

DOCS = ROOT / "docs"


def read(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_setting_is_explained_with_its_default():
    page = read("reference/configuration.md")
    for field in dataclasses.fields(pa.AlignConfig):
        if field.name == "by_family":
            assert "`by_family`" in page
            continue
        row = re.search(rf"^\| `{field.name}` \| (.+?) \|", page, re.MULTILINE)
        assert row, field.name
        given = "None" if field.default is None else field.default
        said = row.group(1).strip("`").replace("−", "-")
        if isinstance(given, float):
            said = str(eval(said)) if re.fullmatch(r"[-\d./]+", said) else said
            assert float(said) == pytest.approx(given), field.name
        else:
            assert said.startswith(str(given)), field.name
        if given == "None" and field.name in FALLBACK and field.name != "edges":
            fallback = FALLBACK[field.name]
            text = "1/3" if fallback == pytest.approx(1 / 3) else str(fallback)
            method_says = field.name in ("calibrate", "cross_weights")
            assert method_says or text in row.group(1), field.name
    assert all(f"`{name}`" in page for name in MODEL_SETTINGS)


def test_every_method_is_named_where_one_is_chosen():
    page = read("guides/choose.md")
    assert all(f"`{name}`" in page for name in METHODS)


def test_every_public_name_is_in_the_reference():
    page = read("reference/api.md")
    assert all(f"pixalign.{name}\n" in page for name in pa.__all__)


def test_every_picture_of_the_concepts_has_its_function():
    figures = runpy.run_path(str(DOCS / "figures.py"), run_name="figures")["FIGURES"]
    assert set(figures) == {path.stem for path in (DOCS / "concepts").glob("*.webp")}
    for name in figures:
        pages = [p for p in (DOCS / "concepts").glob("*.md") if f"({name}.webp)" in p.read_text()]
        assert pages, name
        assert all("python docs/figures.py" in page.read_text() for page in pages), name


def test_the_site_builds_and_loads_nothing_from_outside(tmp_path):
    """With warnings as errors; the gallery's examples are not run here."""
    source, out = tmp_path / "docs", tmp_path / "html"
    for name in ("docs", "examples"):
        made = shutil.ignore_patterns("_build", "gallery", "__pycache__", "*.jsonl")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=made)
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-D", "plot_gallery=0"]
    built = subprocess.run([*command, source, out], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list(out.rglob("*.html"))
    assert len(pages) > 40
    outside = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']https?:""")
    for page in pages:
        assert not outside.search(page.read_text(encoding="utf-8")), page
    for sheet in out.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?https?:", sheet.read_text(encoding="utf-8"))
    commands = (out / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "--absent" in commands
    assert "bench run" in commands
