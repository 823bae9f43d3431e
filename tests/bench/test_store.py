"""Runs on disk: whose images they are, who may write, and what is read of them."""

import dataclasses
import json
import shutil
import subprocess
import sys
import tracemalloc

import accelerate
import pytest
from PIL import Image

from bench_folder import dataset_of, folder_of
from bench_runs import build, image_row, scenes
from pixalign.bench import runner
from pixalign.bench.datasets import open_dataset
from pixalign.bench.examples import draw_examples
from pixalign.bench.spec import load_spec
from pixalign.bench.store import IMAGES, Run
from pixalign.bench.summary import write_result
from pixalign.core.files import held_alone

ROWS = ("uncalibrated", "calibrated")


# ---- whose images ----


def renamed(root):
    for part in ("images", "masks"):
        (root / part / "001.png").rename(root / part / "other.png")


def repainted(root):
    Image.new("RGB", (48, 40), "red").save(root / "images" / "001.png")


def masked(root):
    Image.new("L", (48, 40), 1).save(root / "masks" / "001.png")


@pytest.mark.parametrize("change", [renamed, repainted, masked])
def test_another_root_of_as_many_pictures_is_refused(change, model, small, tmp_path):
    one = folder_of(tmp_path / "one", 2)
    shutil.copytree(one, tmp_path / "copy")
    other = shutil.copytree(one, tmp_path / "other")
    change(other)
    for root in (one, tmp_path / "copy"):  # moved, they are the same pictures
        dataset = open_dataset("folder", root)
        runner.run(small, dataset, model, tmp_path / "out", show=False)
    dataset = open_dataset("folder", other)
    with pytest.raises(ValueError, match=r"another run: pictures was \"[0-9a-f]{64}\", is"):
        runner.run(small, dataset, model, tmp_path / "out", show=False)


def test_wording_may_change(model, small, tmp_path, monkeypatch):
    dataset = dataset_of(tmp_path, 2)
    first = runner.run(small, dataset, model, tmp_path, show=False)
    text = (tmp_path / "small.yaml").read_text().replace("Everything at once", "Two rows")
    text = text.replace("label: tab:none", "label: tab:two\nnotes: [Both are quick.]")
    (tmp_path / "small.yaml").write_text(text.replace("baseline: plain", "baseline: default"))
    monkeypatch.setattr(runner.Bench, "measure", None)  # nothing is done again
    monkeypatch.setattr(runner, "versions", lambda: {"torch": "99"})
    spec = load_spec(tmp_path / "small.yaml")
    counts = dict.fromkeys(dataset.classes, 5)
    runner.run(spec, dataset, model, tmp_path, counts=counts, show=False)
    header = Run.open(first.folder).header
    assert (header["title"], header["label"]) == ("Two rows", "tab:two")
    assert (header["notes"], header["baseline"]) == (["Both are quick."], "default")
    assert {row["baseline"] for row in header["rows"]} == {"default"}
    assert header["counts"] == counts
    assert header["versions"] == first.header["versions"]  # as when the images were measured
    assert write_result(Run.open(first.folder), 5)["title"] == "Two rows"


# ---- who may write ----


def test_a_second_process_is_refused(model, small, tmp_path):
    dataset = dataset_of(tmp_path, 2)
    folder = tmp_path / "small--folder--StableDiffusionPipeline"
    with (
        held_alone(folder),
        pytest.raises(
            ValueError,
            match=r"another process is writing to .*small--folder--Stable.*'; wait",
        ),
    ):
        runner.run(small, dataset, model, tmp_path, show=False)
    assert not (folder / "run.json").exists()
    found = runner.run(small, dataset, model, tmp_path, show=False)
    assert found.done() == {0, 1}


def test_a_killed_process_holds_nothing(tmp_path):
    code = f"""
import os, pathlib
from pixalign.core.files import held_alone
with held_alone(pathlib.Path({str(tmp_path)!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    with held_alone(tmp_path):
        pass


def test_processes_of_one_launch_share_a_run(model, small, tmp_path):
    """The first holds the lock for all; the others would not get it."""
    dataset = dataset_of(tmp_path, 2)

    class Second(runner.OneProcess):
        process_index, num_processes, is_main_process = 1, 2, False

    with held_alone(tmp_path / "small--folder--StableDiffusionPipeline"):
        run = runner.run(small, dataset, model, tmp_path, process=Second(), show=False)
    assert run.done() == set()  # its own part has no chunk


def test_processes_wait_for_days(monkeypatch):
    asked = {}

    monkeypatch.setattr(accelerate, "PartialState", lambda **options: asked.update(options))
    runner.launched_process(cpu=True)
    assert asked["cpu"] is True
    assert asked["timeout"].days >= 7


# ---- lines ----


@pytest.mark.parametrize("torn", ["", '{"index":1,"k', "x" * (2**16 + 5)])
def test_only_a_torn_line_is_cut_off(torn, tmp_path):
    run = build(tmp_path, indices=range(3), total=4)
    path = run.folder / "images.0.jsonl"
    before = path.read_bytes()
    with path.open("a") as file:
        file.write(torn)
    assert run.done() == {0, 1, 2}
    row = image_row(3, scenes(4, ROWS)[3])
    run.append([row], 1.0)
    line = path.read_bytes().removeprefix(before)
    assert line.startswith(row.to_line()[:-1].encode() + b',"crc32":"')
    assert line.count(b"\n") == 1
    assert [image.to_line() for image in run.images()][3] == row.to_line()


def test_a_line_that_has_changed_is_told_and_not_counted(tmp_path):
    run = build(tmp_path, indices=range(2))
    with (run.folder / "images.0.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.warns(RuntimeWarning, match=r"images\.0\.jsonl' is damaged: a line has changed"):
        assert run.done() == {0, 1}


def test_lines_of_older_versions_are_read(tmp_path):
    run = build(tmp_path, indices=range(2))
    path, rows = run.folder / "images.0.jsonl", [image.to_line() for image in run.images()]
    path.write_text("".join(f"{row}\n" for row in rows))
    assert [image.to_line() for image in run.images()] == rows
    path.write_text(path.read_text().replace('"data":"', '"data":"~'))
    with pytest.raises(ValueError, match="the line of an image cannot be read"):
        list(run.images())


def test_lines_are_read_one_at_a_time(tmp_path):
    run = build(tmp_path, indices=(), total=16)
    for index, scene in enumerate(scenes(16, ROWS)):
        long = dataclasses.replace(image_row(index, scene), group=chr(97 + index) * 400_000)
        run.append([long], 1.0, process=index % 2)
    size = sum(path.stat().st_size for path in run.folder.glob("images.*.jsonl"))
    assert size > 6_000_000
    tracemalloc.start()
    try:
        assert run.done() == set(range(16))
        run.merge()
        assert [image.index for image in run.images()] == list(range(16))
        assert tracemalloc.get_traced_memory()[1] < size / 3
    finally:
        tracemalloc.stop()
    assert (run.folder / IMAGES).stat().st_size == size


# ---- pictures ----


@pytest.fixture
def drawn(model, small, tmp_path):
    """A run with its pictures, and how to draw them again."""
    dataset = dataset_of(tmp_path, 4)
    run = runner.run(small, dataset, model, tmp_path, show=False)
    result = write_result(run, 5)

    def draw(**changes):
        draw_examples(run, result | changes, small, dataset, model)
        return json.loads((run.folder / "pictures" / "pictures.json").read_text())

    return run, result, draw


def test_pictures_have_the_summarys_ious(drawn, monkeypatch):
    run, result, draw = drawn
    images = {image.key: image for image in run.images()}
    monkeypatch.setattr(Run, "images", None)  # no row is read for them
    records = draw()
    assert [record["key"] for record in records] == [*result["best"], *result["worst"]]
    threshold = result["rows"]["default"]["oracle"]["threshold"]
    for record in records:
        ious = images[record["key"]].tallies["default"][0].at(threshold).ious()[1:, 0]
        assert record["miou"] == pytest.approx(100 * float(ious.mean()), abs=0.01)
        assert Image.open(run.folder / "pictures" / record["file"]).width > 200


def test_pictures_are_drawn_once(drawn, monkeypatch):
    run, result, draw = drawn
    records, calls, real = draw(), [], runner.Bench.heatmaps

    def counted(bench, subjects):
        calls.extend(subject.sample.key for subject in subjects)
        return real(bench, subjects)

    monkeypatch.setattr(runner.Bench, "heatmaps", counted)
    assert draw() == records
    assert calls == []
    first = records[0]["key"]
    changed = draw(ious=result["ious"] | {first: 1.23})  # the same images, with other masks
    assert len(calls) == len(records)
    assert changed[0]["miou"] == 1.23
    (run.folder / "pictures" / records[0]["file"]).unlink()
    draw(ious=result["ious"] | {first: 1.23})
    assert len(calls) == 2 * len(records)
    (run.folder / "pictures" / "pictures.json").write_text("[{}]")
    draw()
    assert len(calls) == 3 * len(records)
