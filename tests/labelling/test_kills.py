"""A run that is killed again and again ends like one that was not."""

import os
import random
import signal
import sys
import time
import traceback

import pytest
import torch

import pixalign as pa
from label_folders import contents, label, write_pictures
from pixalign.labelling import work


def killed_after(seconds, model, folder, out, how=signal.SIGKILL):
    """Label in a process of its own that is ended then; whether it was at work still."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # once, before several threads of a forked process begin to
            label(model, folder, out, queue=1, formats=("yolo",))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    time.sleep(seconds)
    os.kill(child, how)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def files(out):
    """All files of a run by name, but for the lock, times and what only some runs have."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and name not in ("run/run.lock", "summary.json"):
            found[name] = path.read_bytes()
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that share a loaded model")
@pytest.mark.parametrize(
    ("count", "kills"), [(8, 8), pytest.param(60, 100, marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_again_and_again(pipeline, tmp_path, monkeypatch, count, kills):
    """No picture is lost, none doubled, and every file is the same."""
    monkeypatch.setattr(work, "UNIT", 2)
    model = pa.load(pipeline("sd1"))
    folder = write_pictures(tmp_path / "pictures", count)
    begun = time.perf_counter()
    calm = label(model, folder, tmp_path / "calm", queue=1, formats=("yolo",))
    usual = time.perf_counter() - begun
    chance, killed, rounds = random.Random(0), 0, 0
    while killed < kills:
        out = tmp_path / f"run {rounds}"
        shards = out / "run" / "shards"
        before, at_work = 0, True
        while at_work and killed < kills:
            # Now while pictures are listed or read, now amid a shard, or while files are written.
            seconds = chance.uniform(0, 3 * usual / count)
            how = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            at_work = killed_after(seconds, model, folder, out, how)
            killed += at_work
            finished = len(list(shards.glob("*.npz")))
            assert finished >= before  # what is finished stays
            assert len(list(shards.glob(".*"))) <= work.UNITS  # in flight; the next run removes it
            before = finished
        rounds += 1
        run = label(model, folder, out, queue=1, formats=("yolo",))
        assert contents(run.finished) == contents(calm.finished)
        assert files(out) == files(tmp_path / "calm")
        ids = [item.id for item in run.finished.items]
        assert len(set(ids)) == len(ids) == count == run.summary["pictures"]
    print(f"{killed} kills in {rounds} runs of {count} pictures", file=sys.stderr)
