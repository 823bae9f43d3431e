"""Rank correlations over (image, class) pairs, and who has the highest loss."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pixalign.bench.metrics import bootstrap_weights
from pixalign.bench.pairs import correlations, highest_loss, spearman
from pixalign.bench.store import ImageRow

CLASSES = tuple("abcdef")
HEADER = {"classes": CLASSES, "counts": dict(zip(CLASSES, (9, 1, 7, 3, 5, 2), strict=True))}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * 4 / (5 * 24)
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),  # ranks 1, 2.5, 2.5, 4
        ([1, 1, 2, 2], [1, 2, 1, 2], 0),
        ([3, 3, 3], [1, 2, 3], 0),
        ([5], [7], 0),
        ([], [], 0),
    ],
)
def test_spearman_by_hand(a, b, expected):
    assert spearman(np.array(a), np.array(b)) == pytest.approx(expected)
    assert spearman(np.array(b), np.array(a)) == pytest.approx(expected)


pairs_of_values = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        *[hnp.arrays(np.float64, count, elements=st.integers(0, 6).map(float)) for _ in range(2)]
    )
)


@given(pairs_of_values)
def test_spearman_is_scipys(values):
    stats = pytest.importorskip("scipy.stats")
    a, b = values
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert spearman(a, b) == 0
        return
    expected = stats.spearmanr(a, b).statistic
    assert spearman(a, b) == pytest.approx(expected, abs=1e-12)
    assert spearman(np.exp(a), b**3) == pytest.approx(expected, abs=1e-12)
    assert spearman(a, -b) == pytest.approx(-expected, abs=1e-12)


def rows(count, seed=0):
    """Images of 2 and 3 classes; the loss falls with area inside an image and rises between."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        classes = 2 + index % 2
        labels = tuple(sorted(rng.choice(6, classes, replace=False).tolist()))
        area = rng.uniform(0.05, 0.3, classes)
        offset = 100 * float(np.log(area).mean())
        elbo = offset - np.log(area)
        known = {"elbo": tuple(elbo), "activation": tuple(np.exp(elbo - offset))}
        seen = (1.0,) * classes
        made.append(ImageRow(index, f"{index}", labels, tuple(area), visible=seen, **known))
    return made


def test_correlations_are_within_images():
    images = rows(10)
    rng = np.random.default_rng(1)
    ious = torch.from_numpy(rng.random(sum(len(image.labels) + 1 for image in images)))
    weights = bootstrap_weights(10, 20)
    found = correlations(images, HEADER, ious, weights)
    assert found["elbo~area"] == [-1, -1, -1]
    assert found["elbo~activation"] == [1, 1, 1]
    assert found["elbo~visible"] == [0, 0, 0]
    assert -1 < found["elbo~iou"][1] < found["elbo~iou"][2] < 1
    assert set(found) == {
        *(f"elbo~{name}" for name in ("frequency", "area", "visible", "activation", "iou")),
        *(f"iou~{name}" for name in ("frequency", "area", "visible", "activation")),
    }
    hidden = [dataclasses.replace(image, visible=None) for image in images]
    bare = correlations(hidden, HEADER | {"counts": None}, ious, weights)
    assert set(bare) == {n for n in found if "visible" not in n and "frequency" not in n}
    nothing = [dataclasses.replace(image, elbo=None) for image in images]
    assert correlations(nothing, HEADER, ious, weights) is None
    assert correlations(images, HEADER, None, weights) is None


def test_correlations_leave_the_background_out():
    images = rows(6)
    first = torch.tensor([place == 0 for i in images for place in range(len(i.labels) + 1)])
    areas = torch.tensor([a for image in images for a in (0.0, *image.area)])
    ious = torch.where(first, 1e6, areas)
    found = correlations(images, HEADER, ious, bootstrap_weights(6, 5))
    within = [a - np.mean(i.area) for i in images for a in i.area]
    logs = [x - np.mean(np.log(i.area)) for i in images for x in np.log(i.area)]
    assert found["iou~area"][0] == round(spearman(np.array(within), np.array(logs)), 3)


def test_which_class_has_the_highest_loss():
    images = rows(6)
    found = highest_loss(images, HEADER)
    assert found["smallest"] == 100
    assert found["chance"] == pytest.approx(100 * (1 / 2 + 1 / 3) / 2, abs=0.01)
    rarest = [
        int(np.argmin(image.area))
        == int(np.argmin([HEADER["counts"][CLASSES[label]] for label in image.labels]))
        for image in images
    ]
    assert found["rarest"] == pytest.approx(100 * np.mean(rarest), abs=0.01)
    assert found["target"] == {}
    dialled = [
        dataclasses.replace(image, group="size=1", target=image.labels[int(np.argmin(image.area))])
        for image in images
    ]
    assert highest_loss(dialled, HEADER)["target"] == {"size=1": 100}
    assert highest_loss([dataclasses.replace(i, elbo=None) for i in images], HEADER) is None
