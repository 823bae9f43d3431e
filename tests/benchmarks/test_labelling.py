"""Exported labels score as the benchmark says, and pycocotools reads them."""

import numpy as np
import pytest

import pixalign as pa
from benchmarks import labelling
from pixalign.bench.measuring import Bench
from pixalign.bench.metrics import Tally, curve, nearest_threshold
from pixalign.bench.spec import SpecRow
from pixalign.labelling.formats import write_format

SCENES = 4


@pytest.fixture(scope="module")
def model():
    return pa.load()


@pytest.fixture(scope="module")
def labelled(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    subjects = labelling.scenes(SCENES, folder / "pictures")
    config = pa.AlignConfig.fast(threshold=0.4)
    lists = labelling.lists_of(subjects)
    run = model.label(folder / "pictures", lists, folder / "out", config=config, min_area=0)
    return subjects, run.finished, config, folder


def test_masks_have_the_miou_of_the_benchmark(model, labelled):
    subjects, run, config, _ = labelled
    few = {"preset": "fast", "method": "dense", "set": {"threshold": 0.4}}
    row = SpecRow(name="ours", baseline="ours", **few)
    assert row.config.elbo_steps == config.elbo_steps
    rows, _ = Bench([row], model).measure(subjects)
    tally = Tally.concatenate([row.tallies["ours"][0] for row in rows])
    expected = 100 * float(curve(tally.at(nearest_threshold(0.4))).miou[0, 0])
    found = labelling.miou(labelling.tallies(subjects, run, 0.01))
    assert found == pytest.approx(expected, abs=0.02)  # batches round differently
    assert 40 < found < 100


def test_pycocotools_scores_the_exported_file(labelled):
    """The truth against itself is perfect; the labels lie between."""
    subjects, run, _, folder = labelled
    write_format("coco", run, folder / "coco")
    truth = labelling.truth_of(subjects, run)
    exported = folder / "coco" / "annotations" / "instances_train.json"
    scores = labelling.coco_scores(truth, exported)
    assert 0 < scores["AP"] <= scores["AP50"] <= 100
    perfect = [{**each, "score": 1.0} for each in truth["annotations"]]
    import json

    (folder / "truth.json").write_text(json.dumps({"annotations": perfect}))
    assert labelling.coco_scores(truth, folder / "truth.json")["AP"] == pytest.approx(100)


def test_rank_correlation_is_spearman_s():
    from scipy.stats import spearmanr

    chance = np.random.default_rng(0)
    for _ in range(5):
        one, other = chance.integers(0, 9, (2, 40)).astype(float)
        expected = spearmanr(one, other)[0]
        assert labelling.rank_correlation(one, other) == pytest.approx(expected)


def test_the_share_of_the_worst_that_a_queue_shows_first():
    true = np.arange(30.0)  # the worst are the first three
    assert labelling.worst_found(-true, true) == 1
    assert labelling.worst_found(true, true) == 0
    order = np.zeros(30)
    order[[0, 20]] = 2  # one of the three, and another
    order[3:12] = 1
    assert labelling.worst_found(order, true) == pytest.approx(1 / 3)


def test_absent_classes_are_none_of_the_scene_s(labelled):
    subjects, *_ = labelled
    for key, own in labelling.with_absent(subjects, "test", 3).items():
        (subject,) = [each for each in subjects if f"{each.sample.key}.png" == key]
        names = [phrase.name for phrase in own.phrases]
        assert names[: len(subject.phrases)] == [phrase.name for phrase in subject.phrases]
        assert len(set(names)) == len(subject.phrases) + 3
