"""Summaries of runs against direct computation, and the groupings they rest on."""

import dataclasses
import json
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_runs import CLASSES, COUNTS, build, image_row, scenes
from pixalign.bench.metrics import (
    IGNORE,
    THRESHOLDS,
    bootstrap_weights,
    equal_parts,
    pair_means,
    tertiles,
)
from pixalign.bench.spec import FREQUENCIES
from pixalign.bench.store import Run
from pixalign.bench.summary import read_result, summarise_run, write_result

ROWS = ("uncalibrated", "calibrated")
DRAWS = 60


def guess(scene, row, threshold):
    """The mask [H, W] of the dataset's labels, and the true one."""
    numbers = np.array([0, *(label + 1 for label in scene.labels)])
    truth = np.where(scene.truth == IGNORE, IGNORE, numbers[scene.truth % IGNORE])
    maps = scene.heatmaps[row]
    if not len(maps):
        return np.zeros_like(truth), truth
    best = np.where(maps.max(0) < np.float32(threshold), 0, maps.argmax(0) + 1)
    return numbers[best], truth


def confusion_ious(made, row, threshold):
    """IoU by label, from a confusion matrix filled pixel by pixel."""
    confusion = Counter()
    for scene in made:
        for claimed, true in zip(*(x.ravel() for x in guess(scene, row, threshold)), strict=True):
            if true != IGNORE:
                confusion[int(true), int(claimed)] += 1
    found = {}
    for label in {label for pair in confusion for label in pair}:
        union = sum(n for pair, n in confusion.items() if label in pair)
        found[label] = confusion[label, label] / union
    return found


def miou(made, row, threshold):
    return 100 * float(np.mean(list(confusion_ious(made, row, threshold).values())))


def pair_iou(scene, row, threshold, label):
    claimed, true = guess(scene, row, threshold)
    known = true != IGNORE
    one, two = (claimed == label + 1) & known, true == label + 1
    return 100 * (one & two).sum() / max((one | two).sum(), 1)


def summary(folder, spec="lab-models", draws=5, **about):
    return summarise_run(build(folder, spec, **about), draws)


@pytest.fixture(scope="module")
def made():
    return scenes(14, ROWS, classless=(4,))


@pytest.fixture(scope="module")
def result(made, tmp_path_factory):
    about = {"indices": range(14), "made": made, "counts": COUNTS, "limit": 14}
    return summary(tmp_path_factory.mktemp("runs"), draws=DRAWS, **about)


@pytest.mark.parametrize("name", ROWS)
def test_the_best_of_all_thresholds_and_the_configs(result, made, name):
    row = result["rows"][name]
    direct = [miou(made, name, threshold) for threshold in THRESHOLDS]
    assert row["curve"] == pytest.approx(direct, abs=0.006)
    assert row["oracle"]["miou"] == pytest.approx(max(direct), abs=0.001)
    assert row["oracle"]["threshold"] == THRESHOLDS[int(np.argmax(direct))]
    assert row["config"]["threshold"] == row["fixed"]["threshold"] == 0.4
    assert row["fixed"]["miou"] == pytest.approx(miou(made, name, 0.4), abs=0.001)
    assert row["fixed"]["miou"] <= row["oracle"]["miou"]


def test_effects_are_paired_differences(result, made):
    row, base = result["rows"]["calibrated"], result["rows"]["uncalibrated"]
    weights = bootstrap_weights(len(made), DRAWS)
    drawn = []
    for often in weights.int().tolist():
        again = [scene for scene, n in zip(made, often, strict=True) for _ in range(n)]
        drawn.append(miou(again, "calibrated", 0.4) - miou(again, "uncalibrated", 0.4))
    low, high = np.quantile(drawn, [0.025, 0.975])
    point = row["fixed"]["miou"] - base["fixed"]["miou"]
    assert row["effect"]["fixed"] == pytest.approx([point, low, high], abs=0.002)
    assert row["effect"]["oracle"][0] == pytest.approx(
        row["oracle"]["miou"] - base["oracle"]["miou"], abs=0.002
    )
    assert base["effect"] == {"oracle": None, "fixed": None}


def test_classes_go_by_their_names(result, made):
    row = result["rows"]["calibrated"]
    direct = confusion_ious(made, "calibrated", row["oracle"]["threshold"])
    names = ("background", *CLASSES)
    expected = {names[label]: 100 * iou for label, iou in direct.items()}
    assert row["classes"] == pytest.approx(expected, abs=0.006)


def test_tenths_by_area(result, made):
    row, base = (result["rows"][name] for name in reversed(ROWS))
    pairs = sorted(
        ((scene.truth == n + 1).mean(), number, n)
        for number, scene in enumerate(made)
        for n in range(len(scene.labels))
    )
    sizes = [tenth["pairs"] for tenth in row["area"]]
    assert (sum(sizes), len(sizes)) == (len(pairs), 10)
    assert max(sizes) - min(sizes) <= 1
    start = 0
    for tenth, before in zip(row["area"], base["area"], strict=True):
        inside = pairs[start : start + tenth["pairs"]]
        start += tenth["pairs"]
        assert tenth["from"] == pytest.approx(inside[0][0], abs=1e-5)
        assert tenth["to"] == pytest.approx(inside[-1][0], abs=1e-5)
        ious = [
            pair_iou(made[number], "calibrated", row["oracle"]["threshold"], made[number].labels[n])
            for _, number, n in inside
        ]
        assert tenth["iou"] == pytest.approx(np.mean(ious), abs=0.001)
        assert tenth["low"] <= tenth["iou"] <= tenth["high"]
        assert tenth["effect"][0] == pytest.approx(tenth["iou"] - before["iou"], abs=0.002)


def test_groups_by_frequency(result, made):
    row = result["rows"]["calibrated"]
    thirds = {"rare": (4, 5), "common": (1, 3), "frequent": (0, 2)}
    assert list(row["frequency"]) == list(FREQUENCIES)
    for kind in ("oracle", "fixed"):
        threshold = row[kind]["threshold"]
        direct = confusion_ious(made, "calibrated", threshold)
        for group, classes in thirds.items():
            entry = row["frequency"][group]
            assert entry["classes"] == 2
            entry = entry if kind == "oracle" else entry["fixed"]
            expected = 100 * np.mean([direct[c + 1] for c in classes])
            assert entry["miou"] == pytest.approx(expected, abs=0.001)
            assert entry["low"] <= entry["high"]


def test_without_counts_there_is_no_frequency(tmp_path):
    assert summary(tmp_path)["rows"]["calibrated"]["frequency"] is None


def test_best_and_worst_images(result, made, tmp_path):
    threshold = result["rows"]["calibrated"]["oracle"]["threshold"]
    means = {
        f"image-{number:03d}": np.mean(
            [pair_iou(scene, "calibrated", threshold, label) for label in scene.labels]
        )
        for number, scene in enumerate(made)
        if scene.labels
    }
    order = sorted(means, key=lambda key: (-means[key], key))
    assert result["focus"] == "calibrated"
    assert result["best"] == order[:5]
    assert result["worst"] == order[-5:][::-1]
    few = summary(tmp_path, indices=range(3))  # each is best or worst, but not both
    assert [len(few[kind]) for kind in ("best", "worst")] == [2, 1]
    assert len({*few["best"], *few["worst"]}) == 3


def test_a_calibrating_baseline_is_the_one_to_look_at(tmp_path):
    assert summary(tmp_path, "lab-fixed-scores")["focus"] == "ELB based S"
    assert summary(tmp_path, "lab-elbo-steps")["focus"] == "1 step"


def test_the_dials_levels(tmp_path):
    groups = ("base=0", "size=0.5", "size=1")
    made = scenes(12, ROWS, groups=groups)
    row = summary(tmp_path, "toy", 40, made=made)["rows"]["calibrated"]
    assert list(row["groups"]) == list(groups)
    for group, entry in row["groups"].items():
        inside = [scene for scene in made if scene.group == group]
        assert entry["pairs"] == 4
        assert entry["low"] <= entry["iou"] <= entry["high"]
        for found, threshold in ((entry, row["oracle"]["threshold"]), (entry["fixed"], 0.4)):
            ious = [pair_iou(scene, "calibrated", threshold, scene.target) for scene in inside]
            assert found["iou"] == pytest.approx(np.mean(ious), abs=0.001)


def test_a_target_that_cannot_be_seen_is_no_pair(tmp_path):
    made = scenes(6, ROWS, groups=("base=0", "occlusion=1"))
    hidden = next(c for c in range(len(CLASSES)) if c not in made[1].labels)
    made[1] = dataclasses.replace(made[1], target=hidden)
    rows = summary(tmp_path, "toy", made=made, indices=range(6))["rows"]
    assert [entry["pairs"] for entry in rows["calibrated"]["groups"].values()] == [3, 2]
    gone = [
        dataclasses.replace(scene, target=next(c for c in range(6) if c not in scene.labels))
        for scene in made
    ]
    rows = summary(tmp_path / "gone", "toy", made=gone, indices=range(6))["rows"]
    entry = rows["calibrated"]["groups"]["base=0"]
    assert (entry["pairs"], entry["iou"], entry["low"]) == (0, None, None)
    json.dumps(entry, allow_nan=False)


def test_an_unfinished_run(tmp_path):
    """The numbers of its images have gaps; those to come count for nothing."""
    made = scenes(4, ROWS)
    found = summary(tmp_path / "a", made=made, indices=(1, 4, 5, 9), total=20)
    whole = summary(tmp_path / "b", made=made, indices=range(4))
    assert (found["done"], found["images"], found["complete"]) == (4, 20, False)
    assert (whole["done"], whole["images"], whole["complete"]) == (4, 4, True)
    assert found["seconds_per_image"] == 2.0
    for name in ROWS:
        for kind in ("oracle", "fixed", "effect", "area"):
            assert found["rows"][name][kind] == whole["rows"][name][kind]
    begun = summary(tmp_path / "c", indices=(), total=20)
    assert (begun["done"], begun["rows"], begun["missing"]) == (0, {}, list(ROWS))
    assert begun["seconds_per_image"] is None


def test_rows_that_were_not_run_are_named(tmp_path):
    found = summary(tmp_path, "lab-sota")
    assert list(found["rows"]) == ["uncalibrated", "ELBO-T2IAlign"]
    assert found["missing"] == [
        "DAAM", "OVAM, not optimised", "OVAM", "DiffPNG", "DiffSegmenter", "Semantic DiffSeg",
    ]  # fmt: skip
    run = build(tmp_path, "lab-models", indices=range(6), total=7)
    run.append([image_row(6, *scenes(1, ROWS[:1]))], 1.0)
    half = summarise_run(run, 5)
    assert (list(half["rows"]), half["missing"]) == (["uncalibrated"], ["calibrated"])
    assert half["focus"] == "uncalibrated"


def test_a_missing_baseline_leaves_no_effect(tmp_path):
    run = build(tmp_path)
    changed = json.loads((run.folder / "run.json").read_text())
    changed["rows"] = [row for row in changed["rows"] if row["name"] == "calibrated"]
    (run.folder / "run.json").write_text(json.dumps(changed))
    row = summarise_run(Run.open(run.folder), 5)["rows"]["calibrated"]
    assert row["effect"] == {"oracle": None, "fixed": None}
    assert all(tenth["effect"] is None for tenth in row["area"])


def test_result_json(tmp_path):
    run = build(tmp_path, "lab-gamma", counts=COUNTS)
    path = run.folder / "result.json"
    found = write_result(run, DRAWS)
    assert found == read_result(path) == {**summarise_run(run, DRAWS), "source": found["source"]}
    assert path.stat().st_size < 60_000
    written = path.stat().st_mtime_ns
    assert write_result(run, DRAWS) == found
    assert path.stat().st_mtime_ns == written  # the same images: nothing to do
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"result\.json' is damaged"):
        read_result(path)
    assert write_result(run, DRAWS) == found


def test_new_images_make_a_new_result(tmp_path):
    run = build(tmp_path, indices=range(6), total=7)
    assert write_result(run, 5)["done"] == 6
    run.append([image_row(6, scenes(7, ROWS)[6])], 1.0)
    found = write_result(run, 5)
    assert (found["done"], found["complete"]) == (7, True)
    (run.folder / "result.json").write_text(json.dumps(dict(found, format=9)))
    with pytest.raises(ValueError, match="has format 9; allowed: 1"):
        read_result(run.folder / "result.json")


# ---- groupings ----


def test_tertiles_by_hand():
    counts = dict(zip("abcdef", (10, 20, 30, 40, 50, 60), strict=True))
    # The 33rd percentile is 26.5, the 66th 43.
    expected = {"a": "rare", "b": "rare", "c": "common", "d": "common", "e": "frequent"}
    assert tertiles(counts) == {**expected, "f": "frequent"}
    assert tertiles({}) == {}
    # Four of six classes never occur: the 33rd percentile is 0, and all of them are rare.
    zeros = tertiles(dict(zip("abcdef", (0, 0, 0, 0, 1, 2), strict=True)))
    assert Counter(zeros.values()) == {"rare": 4, "frequent": 2}


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 20), min_size=1))
def test_tertiles_follow_the_counts(counts):
    ranks = {name: FREQUENCIES.index(group) for name, group in tertiles(counts).items()}
    for one, other in product(counts, repeat=2):
        assert counts[one] > counts[other] or ranks[one] <= ranks[other]


def test_equal_parts_by_hand():
    values = torch.tensor([5.0, 1.0, 4.0, 1.0, 3.0])
    assert equal_parts(values, 5).tolist() == [4, 0, 3, 1, 2]
    assert equal_parts(values, 2).tolist() == [1, 0, 1, 0, 0]
    assert equal_parts(torch.zeros(0), 10).tolist() == []


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 12))
def test_equal_parts_are_equal_and_in_order(values, parts):
    found = equal_parts(torch.tensor(values, dtype=torch.float64), parts).tolist()
    sizes = [found.count(part) for part in range(parts)]
    assert sum(sizes) == len(values)
    assert max(sizes) - min(sizes) <= 1
    for (one, part), (other, other_part) in product(zip(values, found, strict=True), repeat=2):
        assert one >= other or part <= other_part


def test_pair_means_by_hand():
    values, image = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 2])
    weights = torch.tensor([[1, 1, 1], [2, 0, 1], [0, 5, 0]], dtype=torch.float64)
    means = pair_means(values, image, weights)
    assert means[:2].tolist() == pytest.approx([4, 16 / 5])
    assert means[2].isnan()


# ---- draws of exponents, constants, and groups by classes and by what is visible ----


def test_draws_of_a_row_are_averaged(tmp_path):
    made = scenes(6, ROWS, seed=3)
    run = build(tmp_path, indices=(), made=[], total=6)
    for index, scene in enumerate(made):
        row = image_row(index, scene)
        both = row.tallies["calibrated"] + row.tallies["uncalibrated"]
        several = dataclasses.replace(row, tallies=row.tallies | {"calibrated": both})
        run.append([several], 1.0)
    found = summarise_run(run, 20)["rows"]
    single = summary(tmp_path / "single", draws=20, indices=range(6), made=made)["rows"]
    for kind in ("oracle", "fixed"):
        for name in ("miou", "precision", "threshold"):
            mean = np.mean([single[row][kind][name] for row in ROWS])
            assert found["calibrated"][kind][name] == pytest.approx(mean, abs=2e-3)
    for name in ("dog", "background"):
        mean = np.mean([single[row]["classes"][name] for row in ROWS])
        assert found["calibrated"]["classes"][name] == pytest.approx(mean, abs=0.011)
    half = [x / 2 for x in single["calibrated"]["effect"]["oracle"]]
    assert found["calibrated"]["effect"]["oracle"] == pytest.approx(half, abs=2e-3)


def test_the_best_constant_is_the_one_to_beat(tmp_path):
    result = summary(tmp_path, "lab-fixed-scores", 10)
    rows = result["rows"]
    constants = [name for name, row in rows.items() if row["scores"] is not None]
    best = max(constants, key=lambda name: rows[name]["oracle"]["miou"])
    assert result["best_constant"] == best
    assert rows[best]["minus_constant"] == [0, 0, 0]
    ours = rows["ELB based S"]
    expected = ours["oracle"]["miou"] - rows[best]["oracle"]["miou"]
    assert ours["minus_constant"][0] == pytest.approx(expected, abs=2e-3)
    assert summary(tmp_path)["best_constant"] is None


def test_images_by_their_number_of_classes(result, made):
    row = result["rows"]["calibrated"]
    groups = row["counts"]
    assert sum(group["images"] for group in groups.values()) == len(made)
    for count, group in groups.items():
        inside = [scene for scene in made if len(scene.labels) == int(count)]
        assert group["images"] == len(inside)
        direct = miou(inside, "calibrated", row["oracle"]["threshold"])
        assert group["miou"] == pytest.approx(direct, abs=2e-3)


def test_pairs_by_their_visible_share(made, tmp_path):
    run = build(tmp_path, indices=(), made=[], total=len(made))
    rng = np.random.default_rng(0)
    shares = [tuple(rng.uniform(0.3, 1, len(scene.labels)).tolist()) for scene in made]
    for index, (scene, visible) in enumerate(zip(made, shares, strict=True)):
        run.append([dataclasses.replace(image_row(index, scene), visible=visible)], 1.0)
    row = summarise_run(run, 10)["rows"]["calibrated"]
    assert [group["to"] for group in row["visible"]] == [0.5, 0.75, 0.95, 1]
    for group in row["visible"]:
        ious = [
            pair_iou(scene, "calibrated", row["oracle"]["threshold"], label)
            for scene, visible in zip(made, shares, strict=True)
            for label, share in zip(scene.labels, visible, strict=True)
            if group["from"] < share <= group["to"]
        ]
        assert group["pairs"] == len(ious)
        assert group["iou"] == pytest.approx(np.mean(ious), abs=2e-3)
    assert summary(tmp_path / "other")["rows"]["calibrated"]["visible"] is None


def test_lost_classes_are_found_again(tmp_path):
    """Counted pair by pair from the images' tallies."""
    run = build(tmp_path)
    result = summarise_run(run, 5)
    found = result["found_again"]
    plain = found["row"]
    assert run.header["rows"][0]["name"] == plain
    ious = {}
    for name, row in result["rows"].items():
        at = row["oracle"]["threshold"]
        ious[name] = [
            float(iou)
            for image in run.images()
            for iou in image.tallies[name][0].at(at).ious()[1:, 0]
        ]
    lost = [index for index, iou in enumerate(ious[plain]) if iou < 0.1]
    assert found["lost"] == len(lost)
    for name, values in ious.items():
        assert found["found"][name] == sum(values[index] > 0.3 for index in lost)
