"""A cluster of this machine's own: the same shards, also when a worker is killed."""

import dataclasses
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pixalign as pa
import tiny
from pixalign.config import AlignConfig
from pixalign.core.values import Phrase
from pixalign.labelling import work
from pixalign.labelling.ray import RayCluster
from pixalign.labelling.run import LabelRequest, OneProcess, label_folder

CONFIG = AlignConfig(method="attention", collect_steps=1)
COUNT = 24


def load(folder, seen):
    """A model, whose process leaves its number."""
    (Path(seen) / str(os.getpid())).touch()
    return pa.load(folder, device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        tiny.photo(32, 24, seed=number).save(folder / f"{number:02d}.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return folder


@pytest.fixture
def cluster(sd1_folder, tmp_path):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know tests
    (tmp_path / "seen").mkdir()
    yield RayCluster(partial(load, sd1_folder, tmp_path / "seen"), actors=2)
    ray.shutdown()


class Killing:
    """A cluster one of whose workers is killed after the first report."""

    def __init__(self, cluster, seen):
        self.cluster, self.seen, self.killed = cluster, seen, None

    def facts(self, config):
        return dataclasses.replace(self.cluster.facts(config), together=4)

    def label(self, job, todo):
        before = set(os.listdir(self.seen))
        for report in self.cluster.label(job, todo):
            if self.killed is None:
                self.killed = int(max(set(os.listdir(self.seen)) - before))
                os.kill(self.killed, signal.SIGKILL)
            yield report


def masks(run):
    return {picture.key: picture.mask for picture in run.finished}


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(cluster, photos, sd1_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "UNIT", 4)
    request = LabelRequest(photos, (Phrase("dog"), Phrase("cat")), config=CONFIG)
    killing = Killing(cluster, tmp_path / "seen")
    run = label_folder(killing, request, tmp_path / "cluster")
    alone = label_folder(OneProcess(pa.load(sd1_folder)), request, tmp_path / "alone")
    assert killing.killed is not None
    assert len(os.listdir(tmp_path / "seen")) >= 4  # facts, two actors, and another after the kill
    assert [failure.key for failure in run.failures] == ["broken.png"]
    assert len(run.finished) == COUNT
    found, expected = masks(run), masks(alone)
    assert found.keys() == expected.keys()
    for key, mask in found.items():
        np.testing.assert_array_equal(mask, expected[key])
    names = sorted(path.name for path in (tmp_path / "cluster").rglob("*.npz"))
    assert names == sorted(path.name for path in (tmp_path / "alone").rglob("*.npz"))
    same = label_folder(cluster, request, tmp_path / "cluster")
    assert same.summary["labelled_now"] == 0
    assert len(same.finished) == COUNT


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster at '127.0.0.1:1': .*refused"),
        (
            "ray://head:10001",
            "address is 'ray://head:10001'; allowed: 'local', 'auto' or HOST:PORT",
        ),
        ("head", "allowed: 'local', 'auto' or HOST:PORT"),
    ],
)
def test_unknown_clusters_are_told(shell, photos, tmp_path, address, said):
    options = "--out", tmp_path / "out", "--ray", address
    code, out, error = shell("label", photos, "dog", *options)
    assert (code, out) == (2, "")
    (line,) = [each for each in error.splitlines() if not each.startswith("warning: ")]
    assert re.search(said, line)


def test_wrong_numbers_of_actors():
    with pytest.raises(ValueError, match="actors is 0; allowed: 1 or more"):
        RayCluster(partial(load, "", ""), actors=0)
