"""Shared fixtures: each tiny pipeline is built once per worker."""

import os
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from PIL import Image

import pixalign as pa
import tiny
from helpers import model_of
from lab.__main__ import lab
from pixalign import cli

torch.set_num_threads(1)  # the tests run in parallel processes instead
settings.register_profile("pixalign", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("pixalign")

FAMILIES = tuple(tiny.BUILDERS)
QUICK = {"elbo_steps": 3, "collect_steps": 2}


@cache
def _built(name: str) -> Any:
    return tiny.BUILDERS[name]()


@pytest.fixture(scope="session")
def pipeline() -> Callable[[str], Any]:
    """A tiny pipeline by its name in `tiny.BUILDERS`; shared, so never change it."""
    return _built


@cache
def _wide(name: str) -> Any:
    pipe = tiny.BUILDERS[name]().to(torch.float64)
    pipe.vae.to(torch.float32)  # one image at a time goes through it
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    denoiser.register_to_config(sample_size=16)
    return pipe


@pytest.fixture(scope="session")
def wide() -> Callable[[str], Any]:
    """A tiny pipeline in float64 at 64 pixels, where batches of any size agree in every bit.

    In float32 they differ by rounding, and the scores of a random network, whose losses are all
    nearly alike, enlarge that a hundredfold. Shared, so never change it.
    """
    return _wide


@pytest.fixture(scope="session", params=FAMILIES)
def any_pipe(request: pytest.FixtureRequest) -> Any:
    """Every family in turn."""
    return _built(request.param)


@pytest.fixture(scope="session")
def sd1() -> Any:
    """The smallest common case."""
    return _built("sd1")


@pytest.fixture
def aligner(sd1: Any) -> pa.Model:
    """An aligner that takes few steps."""
    return model_of(sd1, config=pa.AlignConfig(**QUICK))


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A landscape picture."""
    return tiny.photo(120, 80)


def _shell(monkeypatch: Any, capsys: Any, name: str, command: Any) -> Any:
    def shell(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what fixtures have printed
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.run_command(command, name)
        return int(ended.value.code or 0), *capsys.readouterr()

    return shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `pixalign` with those arguments: (exit code, stdout, stderr)."""
    return _shell(monkeypatch, capsys, "pixalign", cli.app)


@pytest.fixture
def lab_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `python -m lab` with those arguments: (exit code, stdout, stderr)."""
    return _shell(monkeypatch, capsys, "lab", lab)


@pytest.fixture(scope="session")
def sd1_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny pipeline, as a user would have one."""
    folder = tmp_path_factory.mktemp("models") / "tiny-sd1"
    _built("sd1").save_pretrained(folder)
    return folder
