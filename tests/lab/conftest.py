"""Finished toy runs, each made once for all tests and all of pytest's processes."""

import os
from functools import cache

import pytest
from filelock import FileLock

from lab_runs import make_run

# What a run begins from; the other families begin from sd1.
NEEDS = {"vae": (), "classifier": (), "clip": (), "sd1": ("vae",)}


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of the run "vae", "classifier", "clip", "sd1" ... "sd3"; never change it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    (root / "lab-runs").mkdir(exist_ok=True)

    @cache
    def finished(name):
        for other in NEEDS.get(name, ("sd1",)):
            finished(other)
        folder = root / "lab-runs"
        with FileLock(folder / f"{name}.lock"):
            if not (folder / f"{name}.done").exists():
                make_run(folder, name)
                (folder / f"{name}.done").touch()
        return folder / name

    return finished
