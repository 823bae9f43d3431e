"""The rooms of the house: who may know whom."""

import ast
from pathlib import Path

import pytest

import pixalign

PACKAGE = Path(pixalign.__file__).parent

# A module imports only from folders that stand before its own: in a layer above, or in its layer.
LAYERS = {
    "values": ("core", "diffusion", "text", "pictures", "config"),
    "networks": ("attention", "backbones"),
    "method": ("alignment", "methods"),
    "tasks": (
        "serving", "scenes", "generation", "editing", "labelling", "bench", "audit", "explorer",
    ),
    "shell": ("model", "cli", "__init__", "__main__"),
}  # fmt: skip
ORDER = [room for rooms in LAYERS.values() for room in rooms]
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Names of all modules that a file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "pixalign":
                yield from (f"pixalign.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    here = room(path)
    assert here in ORDER, f"{here} has no place in the table"
    for name in imports(path):
        if name.startswith("pixalign."):
            there = name.split(".")[1]
            before = there == here or ORDER.index(there) < ORDER.index(here)
            assert before, f"{path.name} must not import {name}"


def test_only_backbones_know_pipelines():
    """Of accelerate, the benchmark has its processes."""
    for path in MODULES:
        known = {name.split(".")[0] for name in imports(path)}
        if room(path) != "backbones":
            assert not known & {"diffusers", "transformers"}, path
        if room(path) not in ("backbones", "bench"):
            assert "accelerate" not in known, path


def test_files_stay_readable():
    for path in MODULES:
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= 400, f"{path.name} has {lines} lines"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno
                assert length <= 80, f"{path.name}: {node.name} has {length} lines"


def test_importing_is_light():
    """Nothing loads diffusers or transformers before it must: that takes seconds."""
    import subprocess
    import sys

    code = "import pixalign.model, sys; print({'diffusers', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_public_names_are_documented():
    for name in pixalign.__all__:
        assert getattr(pixalign, name).__doc__
