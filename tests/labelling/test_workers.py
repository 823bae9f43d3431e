"""Several processes label what one would, also when one is killed."""

import os
import signal
from contextlib import closing
from functools import partial

import pytest
import torch

import pixalign as pa
from label_folders import CLASSES, QUICK, contents, label, write_pictures
from pixalign.labelling import work
from pixalign.labelling.run import LabelRequest, Outputs, label_folder
from pixalign.labelling.workers import Processes


def load(folder, kill, number):
    """A tiny model; the process of that number kills itself at its third batch, the first time."""
    torch.set_num_threads(1)
    model = pa.load(folder, device="cpu")
    if kill is not None and not kill.exists():
        passes = 0

        def count(*_):
            nonlocal passes
            passes += 1
            if passes == 3:
                kill.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        model.pipe.unet.register_forward_pre_hook(count)
    return model


def labelled(processes, folder, out):
    request = LabelRequest(folder, tuple(map(pa.Phrase, CLASSES)), config=QUICK)
    with closing(processes):
        return label_folder(processes, request, out, Outputs())


def test_a_process_that_is_killed_is_replaced(sd1_folder, tmp_path):
    folder = write_pictures(tmp_path / "pictures", 20)  # two units
    (folder / "07.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    processes = Processes(partial(load, sd1_folder, tmp_path / "killed"), 2)
    run = labelled(processes, folder, tmp_path / "out")
    assert processes.deaths >= 1
    assert [failure.key for failure in run.failures] == ["07.png"]
    alone = label(pa.load(sd1_folder, device="cpu"), folder, tmp_path / "alone")
    assert contents(run.finished) == contents(alone.finished)
    assert run.summary["labelled_now"] == 19
    names = [
        sorted(p.name for p in (tmp_path / o / "run/shards").iterdir()) for o in ("out", "alone")
    ]
    assert names[0] == names[1]  # which hold checksums


def load_for_small_units(folder, number):
    work.UNIT = 2
    return load(folder, None, number)


def test_a_process_never_waits_for_units_while_it_owes_reports(sd1_folder, tmp_path, monkeypatch):
    """Of many small ones it knows few at a time, and a stream of pictures reads further ahead."""
    folder = write_pictures(tmp_path / "pictures", 24)

    def stuck(*_):
        raise TimeoutError("nothing is reported")

    usual = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(120)
    try:
        run = labelled(Processes(partial(load_for_small_units, sd1_folder), 1), folder, tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)
    assert len(list((tmp_path / "run/shards").iterdir())) == 12
    monkeypatch.setattr(work, "UNIT", 2)
    alone = label(pa.load(sd1_folder, device="cpu"), folder, tmp_path / "alone")
    assert contents(run.finished) == contents(alone.finished)


def broken(number):
    raise ValueError("no such model")


def test_what_goes_wrong_in_a_process_is_told(tmp_path):
    folder = write_pictures(tmp_path / "pictures", 1)
    with pytest.raises(ValueError, match="no such model"):
        labelled(Processes(broken, 2), folder, tmp_path / "out")


def dying(number):
    os._exit(7)


@pytest.mark.slow
def test_processes_that_only_die_are_an_error(tmp_path):
    folder = write_pictures(tmp_path / "pictures", 1)
    with pytest.raises(ChildProcessError, match="exit code 7"):
        labelled(Processes(dying, 2), folder, tmp_path / "out")
