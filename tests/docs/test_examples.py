"""The gallery's examples run, each shows a picture, and the slow tests hold a minute."""

import runpy
import time

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
    assert capsys.readouterr().out
    assert viewer.pictures
    assert all(min(picture.size) > 60 for picture in viewer.pictures)


def test_there_are_enough():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_with_few_steps(path, monkeypatch, capsys):
    run_example(path, True, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(path, monkeypatch, capsys):
    """In less than a minute of two cores."""
    began = time.process_time()
    run_example(path, False, monkeypatch, capsys)
    assert time.process_time() - began < 120
