"""Real disks: one that is full, and one that can only be read; nothing half-written, one line."""

import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from test_kills import SPEC

import pixalign as pa
import tiny
from bench_folder import dataset_of
from helpers import small
from label_folders import contents, label, write_pictures
from pixalign.bench import runner
from pixalign.bench.spec import load_spec
from pixalign.bench.store import IMAGES

pytestmark = pytest.mark.fuzz
FEW = pa.AlignConfig(elbo_steps=1, collect_steps=1)


class Disk:
    """A disk in memory of so many bytes, below a folder."""

    def __init__(self, folder):
        self.folder = folder

    def options(self, text):
        subprocess.run(["mount", "-o", f"remount,{text}", self.folder], check=True)

    @contextmanager
    def without_room(self):
        """All of it is taken, but for what is freed inside."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(2**14)):
                pass
        assert os.statvfs(self.folder).f_bavail == 0
        try:
            yield
        finally:
            filler.unlink()

    def files(self):
        """What has a final name."""
        return {
            path.relative_to(self.folder): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.parts)
        }


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here: this needs root, and Linux")
    yield Disk(folder)
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    tiny.photo(96, 96).save(path)
    return path


def test_results_on_a_full_disk(disk):
    result = pa.load(small("sd1")).align(tiny.photo(96, 96), ["dog", "cat"], config=FEW)
    result.save(disk.folder / "old")
    before = disk.files()
    with disk.without_room():
        for name in ("old", "new"):
            with pytest.raises(OSError, match="No space left") as refused:
                result.save(disk.folder / name, 0.9)
            assert str(disk.folder) in str(refused.value)
    assert disk.files() == before
    assert not list(disk.folder.rglob(".*"))
    result.save(disk.folder / "new")
    assert np.array_equal(pa.Alignment.load(disk.folder / "new").heatmaps, result.heatmaps)


@pytest.mark.parametrize("room", [0, 30_000, 60_000, 100_000])
def test_labels_on_a_disk_that_fills_up(disk, tmp_path, room):
    """With a little room some files are written; with more, the same call ends as it would have."""
    model, folder = pa.load(small("sd1")), write_pictures(tmp_path / "pictures", 6, (90, 80))
    options = {"formats": ("coco", "png"), "queue": 2}
    calm = label(model, folder, tmp_path / "calm", **options)
    spare = disk.folder / "spare"
    spare.write_bytes(bytes(room))
    with disk.without_room():
        spare.unlink()
        for _ in range(2):  # also where something is there already
            with pytest.raises(OSError, match="No space left"):
                label(model, folder, disk.folder / "out", **options)
    again = label(model, folder, disk.folder / "out", **options)
    assert contents(again.finished) == contents(calm.finished)
    for name in ("coco/annotations/instances_train.json", "review.csv"):
        own, other = (where / name for where in (disk.folder / "out", tmp_path / "calm"))
        assert own.read_bytes() == other.read_bytes()
    assert not [path for path in disk.folder.rglob(".*") if "written-by" not in path.name]


def test_a_run_on_a_disk_that_fills_up(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "CHUNK", 1)
    (tmp_path / "one.yaml").write_text(SPEC)
    spec, dataset = load_spec(tmp_path / "one.yaml"), dataset_of(tmp_path, 6)
    model = pa.load(small("sd1"))
    whole = runner.run(spec, dataset, model, tmp_path / "whole", show=False)
    spare = disk.folder / "spare"
    spare.write_bytes(bytes(2**13))
    with disk.without_room():
        spare.unlink()
        with pytest.raises(OSError, match="No space left"):
            runner.run(spec, dataset, model, disk.folder / "out", show=False)
    run = runner.run(spec, dataset, model, disk.folder / "out", show=False)
    assert (run.folder / IMAGES).read_bytes() == (whole.folder / IMAGES).read_bytes()


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_what_is_typed(disk, shell, picture, sd1_folder, state):
    """Refused in one line that names the folder."""
    pictures, few = picture.parent, ("--model", sd1_folder, "--device", "cpu")
    out, edited = disk.folder / "out", ("a dog", "--target", "a cat")
    commands = [
        ("segment", picture, "dog", "--out", out, *few, "--preset", "fast"),
        ("label", pictures, "dog", "--out", out, *few, "--preset", "fast"),
        ("generate", "a dog", "--method", "plain", "--steps", 1, "--out", out, *few),
        ("edit", picture, "--source", *edited, "--steps", 1, "--out", out, *few),
        ("scenes", "--out", out),
    ]

    def refused():
        for command in commands:
            code, _, err = shell(*command)
            assert code == 2, (command, err)
            line = [line for line in err.splitlines() if not line.startswith("warning")]
            assert len(line) == 1, err
            assert str(disk.folder) in line[0]
            assert "No space left" in err or "Read-only" in err

    if state == "full":
        with disk.without_room():
            refused()
    else:
        disk.options("ro")
        refused()
        disk.options("rw")
    assert {path.name for path in disk.files()} <= {"run.lock"}


def test_edits_whose_cache_is_read_only(disk, tmp_path):
    """The picture is edited, and a warning says that the inversion was not kept."""
    disk.options("ro")
    model = pa.load(small("sd1"))
    asked = {"steps": 2, "size": (32, 32), "entities": ["car"]}
    with pytest.warns(RuntimeWarning, match="Read-only"):
        edit = model.edit(
            tiny.photo(32, 32), "a dog and a car", "a cat and a car", cache=disk.folder, **asked
        )
    plain = model.edit(tiny.photo(32, 32), "a dog and a car", "a cat and a car", **asked)
    assert np.array_equal(np.asarray(edit.edited), np.asarray(plain.edited))
    assert Path(disk.folder).is_dir()
