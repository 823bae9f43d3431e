"""One measurement of a picture, and what is kept of it."""

import numpy as np
import pytest
import torch

import pixalign as pa
from helpers import assert_close, batches
from pixalign.alignment.heatmaps import layer_correlations, refine
from pixalign.audit.records import (
    METHODS,
    agreements,
    confusion,
    measured_results,
    picture_record,
)
from pixalign.bench.metrics import IGNORE
from pixalign.core.maps import resize

CLASSES = [pa.Phrase("dog"), pa.Phrase("cat", "a red cat"), pa.Phrase("car")]


def test_one_measurement_serves_all_methods(tiny_model, few, photo):
    """Each as if asked for alone; the network runs no more than for "dense"."""
    (results, _), together = batches(
        tiny_model.pipe, lambda: measured_results(tiny_model, photo, CLASSES, few, 5)
    )
    for kind in METHODS:
        alone, passes = batches(
            tiny_model.pipe,
            lambda name=kind.name: tiny_model.align(
                photo, CLASSES, method=name, config=few, seed=5
            ),
        )
        assert_close(results[kind.name], alone)
        if kind.name == "dense":
            assert sum(together) == sum(passes)


def test_confusion_counts_each_pixel_once():
    generator = np.random.default_rng(0)
    truth = generator.choice([0, 1, 2, 3, IGNORE], (9, 7)).astype(np.int64)
    mask = generator.integers(0, 3, (9, 7)).astype(np.uint8)  # the third is found nowhere
    expected = [[0] * 4 for _ in range(4)]
    for true, called in zip(truth.ravel(), mask.ravel(), strict=True):
        if true != IGNORE:
            expected[true][called] += 1
    assert confusion(truth, mask, 3) == expected


def test_agreement_is_a_correlation():
    generator = np.random.default_rng(1)
    heatmaps = generator.random((3, 6, 5), dtype=np.float32)
    evidence = -generator.random((3, 6, 5), dtype=np.float32)
    one, two = (x - x.mean(0) for x in (heatmaps, evidence))
    expected = [np.corrcoef(one[i].ravel(), two[i].ravel())[0, 1] for i in range(3)]
    assert agreements(heatmaps, evidence) == pytest.approx(expected, abs=1e-5)
    assert agreements(heatmaps, 3 * heatmaps + 1) == pytest.approx([1, 1, 1])
    assert agreements(heatmaps[:1], evidence[:1]) == [None]


def test_layers_correlate_one_by_one(tiny_model, few, photo):
    results, measured = measured_results(tiny_model, photo, CLASSES, few, 0)
    evidence, maps = torch.from_numpy(results["dense"].evidence), measured.maps
    lead = resize(evidence, maps.grid)
    expected = []
    for layer in maps.cross:
        own = refine(resize(layer, maps.grid), maps.self_attention, maps.grid).double()
        one, two = ((x - x.mean(0)).flatten().numpy() for x in (own, lead.double()))
        expected.append(one @ two / np.linalg.norm(one) / np.linalg.norm(two))
    np.testing.assert_allclose(layer_correlations(maps, evidence), expected, atol=1e-4)


def test_a_record_says_what_the_results_say(tiny_model, few, photo):
    truth = np.zeros((photo.height, photo.width), dtype=np.int64)
    truth[:20], truth[20:40, :30], truth[-5:] = 1, 2, IGNORE
    record = picture_record(tiny_model, photo, CLASSES, few, 0, truth)
    results, _ = measured_results(tiny_model, photo, CLASSES, few, 0)
    dense, before = results["dense"], results["attention"].mask()
    for number, (row, trust) in enumerate(zip(record["classes"], dense.trust, strict=True), 1):
        own, other = dense.mask() == number, before == number
        assert (row["verdict"], row["other"]) == (trust.verdict, trust.other)
        assert row["standing"] == pytest.approx(trust.numbers["standing"], rel=1e-5)
        assert row["overlap"] == pytest.approx((own & other).sum() / (own | other).sum(), rel=1e-5)
        assert row["share"] == pytest.approx(own.mean(), rel=1e-5)
    assert {name: sum(map(sum, rows)) for name, rows in record["pixels"].items()} == dict.fromkeys(
        ("attention", "elbo", "dense"), int((truth != IGNORE).sum())
    )
    assert list(record["shown"]) == ["picture", "truth", "attention", "dense"]
    assert all(text.startswith("data:image/webp;base64,") for text in record["shown"].values())


def test_a_picture_of_nothing_is_background(tiny_model, few, photo):
    truth = np.zeros((photo.height, photo.width), dtype=np.int64)
    record, passes = batches(
        tiny_model.pipe, lambda: picture_record(tiny_model, photo, [], few, 0, truth)
    )
    assert record["pixels"]["dense"] == [[truth.size]]
    assert passes == []
