"""Killed at any moment, or on a full disk: nothing is lost, nothing half-written has a final name.

Processes are forks, which begin at once; ``PIXALIGN_KILLS=100`` kills so many.
"""

import json
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

import pixalign as pa
import tiny
from bench_folder import dataset_of
from helpers import small
from pixalign.bench import generation_study, runner
from pixalign.bench.spec import load_spec
from pixalign.bench.store import IMAGES
from pixalign.editing.cache import InversionCache
from pixalign.editing.inversion import Inversion
from pixalign.generation.prompt_sets import SetPrompt

pytestmark = pytest.mark.fuzz
KILLS = int(os.environ.get("PIXALIGN_KILLS", "6"))
SPEC = """
version: 1
label: x
title: x
datasets: [folder]
baseline: a
rows:
  - {name: a, method: attention, set: {collect_steps: 1}}
"""


@pytest.fixture(autouse=True)
def one_thread():
    """A fork has but one thread, whatever it was forked from."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def forked(work):
    """The number of a process that does the work, and ends with 0 if it could."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return number


def killed(rng, work, longest, kills=KILLS):
    """Begin the work again and again, and kill it each time, until it is done or killed enough."""
    count = 0
    while count < kills:
        number = forked(work)
        time.sleep(rng.uniform(0, longest))
        os.kill(number, rng.choice((signal.SIGKILL, signal.SIGTERM)))
        _, status = os.waitpid(number, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return count
        count += 1
    return count


def whole_files(folder):
    """The files of a folder by their names, without those that are being written."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.parts)
    }


def test_a_run_that_is_killed_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "CHUNK", 1)
    (tmp_path / "one.yaml").write_text(SPEC)
    spec, dataset = load_spec(tmp_path / "one.yaml"), dataset_of(tmp_path, 12)
    model = pa.load(small("sd1"))
    whole = runner.run(spec, dataset, model, tmp_path / "whole", show=False)
    began = time.perf_counter()
    runner.run(spec, dataset, model, tmp_path / "timed", show=False)
    longest = 0.5 * (time.perf_counter() - began)

    def work():
        runner.run(spec, dataset, model, tmp_path / "killed", show=False)

    killed(Random(0), work, longest)
    run = runner.run(spec, dataset, model, tmp_path / "killed", show=False)
    assert (run.folder / IMAGES).read_bytes() == (whole.folder / IMAGES).read_bytes()
    assert run.done() == set(range(12))


def test_a_study_that_is_killed_goes_on_to_the_same_figures(tmp_path, monkeypatch):
    """The pictures of rows that were finished before a kill are shown too."""
    model = pa.load(small("sd1"))
    sets = {"two": (SetPrompt("a dog and a cat", ("dog", "cat")),) * 2}
    rows = {label: generation_study.METHOD_ROWS[label] for label in ("plain", "elbo")}

    def study(out):
        options = {"sets": sets, "seeds": 2, "steps": 2, "clip": "lab:clip", "rows": rows}
        return generation_study.run_generation_study(model, out, **options)

    def timeless(out):
        files = whole_files(out)
        (name,) = [name for name in files if name.suffix == ".json"]
        kept = json.loads(files.pop(name))
        del kept["sha256"]
        for row in kept["sets"]["two"].values():
            del row["seconds"]
        return kept, files

    study(tmp_path / "whole")
    began = time.perf_counter()
    study(tmp_path / "timed")
    longest = time.perf_counter() - began
    rng, count = Random(4), 0
    while count < KILLS:
        out = tmp_path / f"killed {count}"
        count += max(1, killed(rng, partial(study, out), longest, kills=2))
        study(out)
        assert timeless(out) == timeless(tmp_path / "whole")
        assert not list(out.glob(".*"))


@pytest.fixture(scope="module")
def result():
    config = pa.AlignConfig(elbo_steps=1, collect_steps=1)
    return pa.load(small("sd1")).align(tiny.photo(96, 96), ["dog", "cat"], config=config)


def test_a_saved_result_is_whole_or_not_there(result, tmp_path):
    rng = Random(1)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        killed(rng, lambda folder=folder: result.save(folder), 0.15, kills=1)
        if folder.exists():
            assert np.array_equal(pa.Alignment.load(folder).heatmaps, result.heatmaps)


def test_kept_inversions_are_whole_or_not_there(tmp_path):
    cache, rng = InversionCache(tmp_path), Random(2)
    inversion = Inversion(torch.randn(1, 4, 64, 64), torch.randn(50, 77, 32))
    for number in range(KILLS):
        key = f"{number:064d}"
        killed(rng, lambda key=key: cache.write(key, inversion), 0.03, kills=1)
        kept = cache.read(key)  # without a warning that it is damaged
        assert kept is None or torch.equal(kept.noise, inversion.noise)


@pytest.mark.parametrize("room", [0, 500, 5000, 60_000])
def test_a_full_disk_leaves_what_was_there(result, tmp_path, room):
    """Files that may not grow beyond so many bytes, as a stand-in for a disk without room."""
    result.save(tmp_path / "old")
    before = whole_files(tmp_path)

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        for folder in ("old", "new"):
            with pytest.raises(OSError, match="too large"):
                result.save(tmp_path / folder, 0.9)

    _, status = os.waitpid(forked(work), 0)
    assert status == 0
    assert whole_files(tmp_path) == before


@pytest.mark.slow
def test_another_process_gives_the_same_numbers(result, tmp_path):
    """With as many threads, to the bit; with others, to rounding."""
    config = result.config
    model = pa.load(small("sd1"))

    def again():
        return model.align(tiny.photo(96, 96), ["dog", "cat"], config=config)

    _, status = os.waitpid(forked(lambda: again().save(tmp_path / "other")), 0)
    assert status == 0
    own = again()
    assert np.array_equal(pa.Alignment.load(tmp_path / "other").heatmaps, own.heatmaps)
    torch.set_num_threads(2)
    np.testing.assert_allclose(again().heatmaps, own.heatmaps, atol=1e-3)
