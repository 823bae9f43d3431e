"""The gallery's examples run, and each shows a picture or prints what it found."""

import runpy

import pytest
from PIL import ImageShow

from documents import ROOT, loader

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


class Kept(ImageShow.Viewer):
    """A viewer that keeps what it is shown."""

    def __init__(self):
        self.pictures = []

    def show(self, image, **options):
        self.pictures.append(image)
        return True


def run_example(path, quick, monkeypatch, capsys):
    viewer = Kept()
    monkeypatch.setattr(ImageShow, "_viewers", [viewer])
    monkeypatch.setattr("pixalign.model.load", loader(quick))
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert viewer.pictures or "best" in printed
    assert all(min(picture.size) > 60 for picture in viewer.pictures)


def test_there_are_enough():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_with_few_steps(path, monkeypatch, capsys):
    run_example(path, True, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(path, monkeypatch, capsys):
    run_example(path, False, monkeypatch, capsys)
