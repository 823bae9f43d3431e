"""A benchmark's rows are what the model gives; a run can be stopped, shared and gone on with."""

import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pixalign as pa
from bench_folder import CLASSES, dataset_of, folder_of
from pixalign.bench import runner
from pixalign.bench.datasets import open_dataset
from pixalign.bench.measuring import Measurement
from pixalign.bench.metrics import IGNORE, THRESHOLDS, tally
from pixalign.bench.spec import load_spec
from pixalign.bench.store import IMAGES, ImageRow, Run, find_runs
from pixalign.bench.subject import image_seed
from pixalign.bench.summary import write_result
from pixalign.methods import METHODS


@pytest.fixture
def spec(spec_of):
    return spec_of(before=None)


def expected(model, sample, index, config):
    """The tally of one image as a user would count it."""
    names = [CLASSES[label] for label in sample.present]
    heatmaps = torch.from_numpy(
        model.align(sample.image, names, config=config, seed=image_seed(7, sample.key)).heatmaps
    )
    return counted(heatmaps, sample, index)


def counted(heatmaps, sample, index):
    truth = np.zeros_like(sample.truth, dtype=np.int64)
    for place, label in enumerate(sample.present):
        truth[sample.truth == label + 1] = place + 1
    truth[sample.truth == IGNORE] = IGNORE
    labels = [label + 1 for label in sample.present]
    return tally(heatmaps[None], torch.from_numpy(truth), labels, index)[0]


def same_counts(own, theirs, row):
    for name, values in vars(theirs).items():
        assert torch.equal(getattr(own, name), values), (row, name)


def test_rows_are_what_the_aligner_gives(model, spec, tmp_path):
    dataset = dataset_of(tmp_path, 5, sizes=((48, 40), (40, 60)))
    found = runner.run(spec, dataset, model, tmp_path, seed=7, show=False)
    images = list(found.images())
    assert [image.key for image in images] == list(dataset.keys)
    assert images[4].labels == ()
    for index, image in enumerate(images[:4]):
        sample = dataset[index]
        assert image.labels == sample.present
        for row in spec.rows if image.labels else ():
            (own,) = image.tallies[row.name]
            if row.scores is None and row.evidence == "own":
                same_counts(own, expected(model, sample, index, row.config), row.name)
    tallies = images[3].tallies
    assert not torch.equal(tallies["constant"][0].claimed, tallies["plain"][0].claimed)
    assert not torch.equal(tallies["five"][0].claimed, tallies["default"][0].claimed)
    assert not torch.equal(tallies["exchanged"][0].claimed, tallies["dense"][0].claimed)


def test_baselines_are_what_they_give_themselves(model, spec_of, tmp_path):
    """Under the ELBO's scores where they are calibrated; the true masks where they need them."""
    spec = spec_of("""
  - {name: plain, method: daam, set: {elbo_steps: 3}}
  - {name: calibrated, method: daam, set: {elbo_steps: 3, calibrate: elbo, gamma: 1/4}}
  - {name: constant, method: daam, set: {calibrate: elbo, centred: true}, scores: 1/2}
  - {name: segmenter, method: diffsegmenter}
""")
    dataset = dataset_of(tmp_path, 4)
    run = runner.run(spec, dataset, model, tmp_path, seed=7, show=False)
    image, sample = list(run.images())[3], dataset[3]
    names = [CLASSES[label] for label in sample.present]
    assert set(run.row_seconds) == set(image.tallies)
    for row in spec.rows:
        options = {"calibrate": row.config.calibrate, "config": row.config}
        if row.scores is not None:
            config = dataclasses.replace(row.config, centred=False)
            options = {"scores": [row.scores] * len(names), "config": config}
        found = METHODS[row.method](model).align(
            sample.image, names, seed=image_seed(7, "003"), **options
        )
        (own,) = image.tallies[row.name]
        same_counts(own, counted(torch.from_numpy(found.heatmaps), sample, 3), row.name)
    claimed = {name: own.claimed for name, (own,) in image.tallies.items()}
    assert not torch.equal(claimed["plain"], claimed["calibrated"])
    assert not torch.equal(claimed["plain"], claimed["constant"])


def test_methods_that_cannot_read_a_model_are_missing(pipeline, tmp_path):
    model = pa.load(pipeline("sd3"))
    run = runner.run(load_spec("sota"), dataset_of(tmp_path, 1), model, tmp_path, show=False)
    assert [row["name"] for row in run.header["rows"]] == ["ELBO-T2IAlign"]
    assert run.header["missing"][0] == "DAAM"
    assert len(run.header["missing"]) == 5


def test_an_image_without_classes_is_all_background(model, small, tmp_path):
    dataset = dataset_of(tmp_path, 1)
    run = runner.run(small, dataset, model, tmp_path, show=False)
    (image,) = run.images()
    assert run.row_seconds == {"plain": 0, "default": 0}
    counted = int((dataset.truth(0) != IGNORE).sum())
    for (own,) in image.tallies.values():
        assert own.label.tolist() == [0]
        assert own.true.tolist() == [counted]
        assert own.hits.tolist() == own.claimed.tolist() == [[counted] * len(THRESHOLDS)]


def test_shared_measurements_are_made_once(model, spec, tmp_path, monkeypatch):
    seen = {"elbo": 0, "collect": 0}
    epsilon, predict = model.backbone.epsilon, model.backbone.predict

    def counted(z, *rest, **options):
        seen["collect"] += len(z)
        return predict(z, *rest, **options)

    def scored(z, *rest):
        seen["elbo"] += len(z)
        return epsilon(z, *rest)

    monkeypatch.setattr(model.backbone, "predict", counted)
    monkeypatch.setattr(model.backbone, "epsilon", scored)
    runner.run(spec, dataset_of(tmp_path, 2), model, tmp_path / "out", show=False)
    # One class: 3 even, 5 even, 3 random, 6 of dense fast; 3 kept. Those that are asked by position
    # have the empty text beside it, which is also what leaving the one class out leaves.
    measured = [Measurement.of(row, model) for row in spec.rows]
    collected = {row.collecting for row in measured} - {""}
    assert len(collected) == 4  # plain, random twice, kept
    assert len({row.scoring for row in measured} - {""}) == 5
    assert seen["elbo"] == 2 * 3 + 5 + 3 + 2 * 6 + 3
    assert seen["collect"] - seen["elbo"] == 4 * 2


# ---- stopping and going on ----


@pytest.fixture
def quick(monkeypatch):
    """Chunks of two images, so that few images are several chunks."""
    monkeypatch.setattr(runner, "CHUNK", 2)


def test_a_stopped_run_goes_on_to_the_same_bytes(model, small, tmp_path, quick, monkeypatch):
    dataset = dataset_of(tmp_path, 6)
    whole = runner.run(small, dataset, model, tmp_path / "whole", show=False)
    calls, real = [], runner.Bench.measure

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(runner.Bench, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        runner.run(small, dataset, model, tmp_path / "parts", show=False)
    part = Run.open(next((tmp_path / "parts").iterdir()))
    assert part.done() == {0, 1}
    with (part.folder / "images.0.jsonl").open("a") as file:
        file.write('{"index": 2, "key": "cut o')  # a kill in the middle of a line
    assert part.done() == {0, 1}

    again = runner.run(small, dataset, model, tmp_path / "parts", show=False)
    assert len(calls) == 4  # two chunks more
    assert again.done() == set(range(6))
    assert (again.folder / IMAGES).read_bytes() == (whole.folder / IMAGES).read_bytes()
    assert not list(again.folder.glob("images.*.jsonl"))
    runner.run(small, dataset, model, tmp_path / "parts", show=False)
    assert len(calls) == 4  # nothing is done twice


def test_other_settings_do_not_mix(model, small, tmp_path):
    dataset = dataset_of(tmp_path, 2)
    done = runner.run(small, dataset, model, tmp_path, show=False)
    before = (done.folder / IMAGES).read_bytes()
    with pytest.raises(ValueError, match=r"another run: seed was 0, is 1; choose another --out"):
        runner.run(small, dataset, model, tmp_path, seed=1, show=False)
    assert done.header["masks"] == "masks"
    other = dataclasses.replace(dataset, masks_from="SegmentationClassAug")
    with pytest.raises(ValueError, match='masks was "masks", is "SegmentationClassAug"'):
        runner.run(small, other, model, tmp_path, show=False)
    with pytest.raises(ValueError, match="1 classes have no count, 'dog' first; give --counts"):
        runner.run(small, dataset, model, tmp_path, counts=dict.fromkeys(CLASSES[1:], 1))
    path = tmp_path / "small.yaml"
    path.write_text(path.read_text().replace("elbo_steps: 3", "elbo_steps: 4"))
    with pytest.raises(ValueError, match=r"another run: digest was"):
        runner.run(load_spec(path), dataset, model, tmp_path, show=False)
    header = json.loads((done.folder / "run.json").read_text())
    header["rows"][1]["config"]["gamma"] = 0.5
    with pytest.raises(ValueError, match=r"rows.default.config.gamma was 0.33\d*, is 0.5;"):
        Run.start(done.folder, header)
    assert (done.folder / IMAGES).read_bytes() == before


def test_a_higher_limit_goes_on(model, small, tmp_path, quick):
    dataset = dataset_of(tmp_path, 6)
    few = dataclasses.replace(dataset, keys=dataset.keys[:3])
    runner.run(small, few, model, tmp_path / "one", limit=3, show=False)
    more = runner.run(small, dataset, model, tmp_path / "one", limit=6, show=False)
    assert more.header["images"] == 6
    whole = runner.run(small, dataset, model, tmp_path / "two", limit=6, show=False)
    assert (more.folder / IMAGES).read_bytes() == (whole.folder / IMAGES).read_bytes()
    with pytest.raises(ValueError, match="another run: limit was 6, is 3"):
        runner.run(small, few, model, tmp_path / "one", limit=3, show=False)
    others = dataclasses.replace(dataset, keys=dataset.keys[::-1])
    runner.run(small, few, model, tmp_path / "three", limit=3, show=False)
    with pytest.raises(ValueError, match="another run: "):
        runner.run(small, others, model, tmp_path / "three", limit=6, show=False)


def test_a_higher_limit_goes_on_where_the_order_depends_on_it(
    model, small, tmp_path, quick, monkeypatch
):
    """The lab's scenes of each kind stand together, so more of them move those that were there."""
    few, many = (open_dataset("lab", None, limit=limit) for limit in (4, 7))
    one, two = tmp_path / "one", tmp_path / "two"
    whole = runner.run(small, many, model, tmp_path / "all", limit=7, show=False)
    begun = runner.run(small, few, model, one, limit=4, show=False).folder
    killed = shutil.copytree(begun, two / begun.name)
    Run.open(killed).merge(many.keys)  # numbered anew, and killed before the header
    shutil.copy(begun / IMAGES, killed / "images.0.jsonl")  # was written and this one removed
    monkeypatch.setattr(runner, "CHUNK", 1)
    measured, append = [], Run.append
    monkeypatch.setattr(
        Run, "append", lambda run, rows, *a: measured.extend(rows) or append(run, rows, *a)
    )
    for folder in (one, two):
        more = runner.run(small, many, model, folder, limit=7, show=False)
        assert (more.folder / IMAGES).read_bytes() == (whole.folder / IMAGES).read_bytes()
    assert [row.key for row in measured] == [key for key in many.keys if key not in few.keys] * 2


def test_other_weights_of_the_same_name_do_not_mix(sd1, small, tmp_path):
    dataset, pipe = dataset_of(tmp_path, 1), copy.deepcopy(sd1)
    runner.run(small, dataset, pa.load(pipe), tmp_path, show=False)
    runner.run(small, dataset, pa.load(pipe), tmp_path, show=False)
    with torch.no_grad():
        next(pipe.unet.parameters()).add_(0.25)
    with pytest.raises(ValueError, match=r"another run: model.weights was"):
        runner.run(small, dataset, pa.load(pipe), tmp_path, show=False)


def test_lines_that_have_changed_are_measured_again(model, small, tmp_path):
    dataset = dataset_of(tmp_path, 2)
    run = runner.run(small, dataset, model, tmp_path / "out", show=False)
    path = run.folder / IMAGES
    before = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(before), 60).tolist():
        changed = bytearray(before)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = b"".join(run._in_order())
        assert kept in (b"", *before.splitlines(keepends=True))  # one of two lines at most
    with pytest.warns(RuntimeWarning, match="its image is done again"):
        again = runner.run(small, dataset, model, tmp_path / "out", show=False)
    assert (again.folder / IMAGES).read_bytes() == before


def test_masks_are_kept_where_they_are_asked_for(model, small, tmp_path):
    dataset = dataset_of(tmp_path, 5)
    run = runner.run(small, dataset, model, tmp_path / "out", show=False, save_masks=True)
    folders = sorted((run.folder / "masks").iterdir())
    assert len(folders) == len(small.rows)
    sample = dataset[3]
    names, labels = [CLASSES[c] for c in sample.present], [0, *(c + 1 for c in sample.present)]
    for row, folder in zip(small.rows, folders, strict=True):
        assert sorted(path.stem for path in folder.iterdir()) == sorted(dataset.keys)
        seed = image_seed(0, sample.key)
        result = model.align(sample.image, names, config=row.config, seed=seed)
        found = np.asarray(Image.open(folder / "003.png"))
        assert np.array_equal(found, np.array(labels)[result.mask()])
        assert not np.asarray(Image.open(folder / "004.png")).any()  # no class


def test_a_picture_that_is_cut_short_ends_a_run_with_its_name(model, small, tmp_path, quick):
    dataset = dataset_of(tmp_path, 6)
    path = dataset.images[dataset.keys[4]]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{path.name}' is damaged or cut short"):
        runner.run(small, dataset, model, tmp_path / "out", show=False)
    (run,) = find_runs(tmp_path / "out")
    assert run.done() == {0, 1, 2, 3}


def test_two_processes_give_the_identical_file(sd1_folder, small, tmp_path):
    data = folder_of(tmp_path / "data", runner.CHUNK + 1)
    model = pa.load(sd1_folder, device="cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = runner.run(small, open_dataset("folder", data), model, tmp_path / "one", show=False)
    finally:
        torch.set_num_threads(threads)
    arguments = ["bench", "run", tmp_path / "small.yaml", "--root", data, "--model", sd1_folder]
    # What `accelerate launch` does for several GPUs; for CPUs alone it wants MPI.
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", 2, "-m", "pixalign"]
    typed = [sys.executable, *launch, *arguments, "--device", "cpu", "--out", tmp_path / "two"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(list(map(str, typed)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (two,) = find_runs(tmp_path / "two")
    assert (one.folder / IMAGES).read_bytes() == (two.folder / IMAGES).read_bytes()
    assert len(list(two.folder.glob("times.*.jsonl"))) == 2  # each did its part
    result = json.loads((two.folder / "result.json").read_text())
    assert result["rows"] == write_result(one)["rows"]


# ---- the store ----


@given(st.data())
def test_a_line_holds_the_whole_row(data):
    classes = data.draw(st.integers(1, 3))
    labels = tuple(data.draw(st.permutations(range(9)))[:classes])
    heat = torch.rand(2, classes, 6, 5, generator=torch.Generator().manual_seed(0))
    truth = torch.tensor(data.draw(st.lists(st.integers(0, classes), min_size=30, max_size=30)))
    both = tally(heat, truth.reshape(6, 5), [label + 1 for label in labels], 4)
    row = ImageRow(
        4, "kéy", labels, (0.25,) * classes, "size=1", labels[0],
        visible=(0.5,) * classes, elbo=None, activation=(1.25,) * classes,
        tallies={"one": both[:1], "two": both},
    )  # fmt: skip
    again = ImageRow.from_line(row.to_line())
    assert again.to_line() == row.to_line()
    assert (again.index, again.key, again.labels, again.group) == (4, "kéy", labels, "size=1")
    for name in ("visible", "elbo", "activation"):
        assert getattr(again, name) == getattr(row, name)
    for name, drawn in row.tallies.items():
        for own, theirs in zip(drawn, again.tallies[name], strict=True):
            same_counts(own, theirs, name)


def test_a_folder_without_results_is_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no results; allowed: what `pixalign bench"):
        find_runs(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="has format 99; allowed: 4"):
        find_runs(tmp_path)


# ---- the command ----


def test_bad_input_is_said_before_a_model_is_loaded(shell, tmp_path, monkeypatch):
    def load(*arguments, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("pixalign.model.load", load)
    folder_of(tmp_path / "data", 2)
    for arguments, message in (
        (["nothing"], "spec is 'nothing'"),
        (["models"], "dataset 'voc' needs a root"),
        (["models", "--root", tmp_path / "absent"], "absent"),
        (["models", "--root", tmp_path / "data"], "VOCdevkit"),
        (["models", "--dataset", "lab"], "is for voc, context, coco, ade20k, not lab"),
        (["models", "--dataset", "vocs"], "'vocs' is not one of 'voc'"),
        (["lab-models", "--batch-size", "none"], "batch_size is 'none'"),
        (["lab-models", "--device", "tpu"], "device"),
    ):
        code, _, error = shell("bench", "run", *arguments)
        assert code == 2
        assert message in error


def test_check_counts_the_classes_of_a_root(shell, tmp_path):
    root = folder_of(tmp_path / "data", 4)
    code, out, _ = shell("bench", "check", root, "--json")
    assert code == 0
    (record,) = json.loads(out)
    assert (record["images"], record["empty"]) == (4, 1)
    assert sum(record["images_per_class"].values()) == 1 + 2 + 3
    shutil.move(root / "masks" / "003.png", tmp_path)
    code, _, error = shell("bench", "check", root)
    assert code == 2
    assert "003" in error


def test_listing(shell):
    code, out, _ = shell("bench", "ls", "--json")
    assert code == 0
    found = {one["name"]: one for one in json.loads(out)}
    assert found["models"]["rows"] == 2
    assert found["sota"]["rows"] == 6
