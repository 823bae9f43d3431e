"""Metrics: cases worked by hand, a plain loop over thresholds and pixels, and invariants."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from pixalign.alignment.result import Alignment
from pixalign.bench.metrics import (
    IGNORE,
    THRESHOLDS,
    Tally,
    bootstrap_weights,
    class_ious,
    curve,
    figures,
    interval,
    tally,
    threshold_index,
)
from pixalign.config import AlignConfig
from pixalign.core.values import Phrase

NAMES = ("miou", "precision", "recall", "f1")
HALF = threshold_index(0.5)

# Values on both sides of thresholds and exactly on them; few, so that classes tie.
ON = np.float32([0.01, 0.07, 0.29, 0.5, 0.58, 0.99])
EDGES = np.concatenate([ON, np.nextafter(ON, np.float32(0)), np.nextafter(ON, np.float32(1))])
values = st.sampled_from([0.0, 0.3, 1.0, *EDGES.tolist()])


@st.composite
def scenes(draw):
    """Images of a dataset with 4 classes: (heatmaps [N, 3, 4], truth [3, 4], labels)."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        labels = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
        heatmaps = draw(hnp.arrays(np.float32, (len(labels), 3, 4), elements=values))
        kinds = st.sampled_from([*range(len(labels) + 1), IGNORE])
        found.append((heatmaps, draw(hnp.arrays(np.uint8, (3, 4), elements=kinds)), labels))
    return found


def mask_of(heatmaps, threshold):
    background = heatmaps.max(0) < np.float32(threshold)
    return np.where(background, 0, heatmaps.argmax(0) + 1)


def naive(images, threshold):
    """The four metrics and the IoU of each label, from a confusion matrix filled pixel by pixel."""
    confusion = Counter()
    for heatmaps, truth, labels in images:
        numbers = [0, *labels]
        for guess, known in zip(
            mask_of(heatmaps, threshold).ravel(), truth.ravel().tolist(), strict=True
        ):
            if known != IGNORE:
                confusion[numbers[known], numbers[guess]] += 1
    rows = {}
    for label in {label for pair in confusion for label in pair}:
        hits = confusion[label, label]
        true = sum(n for (known, _), n in confusion.items() if known == label)
        claimed = sum(n for (_, guess), n in confusion.items() if guess == label)
        precision, recall = hits / claimed if claimed else 0, hits / true if true else 0
        both = precision + recall
        f1 = 2 * precision * recall / both if both else 0
        rows[label] = (hits / (true + claimed - hits), precision, recall, f1)
    means = [sum(column) / len(rows) for column in zip(*rows.values(), strict=True)]
    return means or [np.nan] * 4, {label: row[0] for label, row in rows.items()}


def pooled(images):
    return Tally.concatenate(
        [
            tally(torch.from_numpy(heatmaps)[None], torch.from_numpy(truth), labels, number)[0]
            for number, (heatmaps, truth, labels) in enumerate(images)
        ]
    )


def random_images(count, seed=0, size=(6, 7), classes=5):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        labels = 1 + rng.choice(classes, rng.integers(1, 4), replace=False)
        truth = rng.integers(0, len(labels) + 1, size).astype(np.uint8)
        truth[rng.random(size) < 0.1] = IGNORE
        near = truth[None] == np.arange(1, len(labels) + 1)[:, None, None]
        heatmaps = (rng.random((len(labels), *size)) * 0.8 + 0.2 * near).astype(np.float32)
        found.append((heatmaps, truth, labels.tolist()))
    return found


def same(first, second):
    for name, values in vars(first).items():
        assert torch.equal(values, getattr(second, name)), name


def at(found, index):
    """The four metrics at one threshold."""
    return [getattr(found, name)[0, index].item() for name in NAMES]


def test_thresholds():
    assert (len(THRESHOLDS), THRESHOLDS[0], THRESHOLDS[-1]) == (99, 0.01, 0.99)
    assert [threshold_index(value) for value in THRESHOLDS] == list(range(99))
    assert threshold_index(0.1 + 0.2) == 29
    for value in (0.0, 1.0, 0.505, -0.5, float("nan")):
        with pytest.raises(ValueError, match=r"allowed: 0\.01, 0\.02, \.\.\., 0\.99"):
            threshold_index(value)


HEATMAPS = torch.tensor(
    [
        [[0.9, 0.8, 0.1], [0.5, 0.2, 0.0], [0.7, 0.3, 0.4]],
        [[0.1, 0.9, 0.2], [0.5, 0.6, 0.1], [0.6, 0.1, 0.9]],
    ]
)
TRUTH = torch.tensor([[1, 1, 0], [1, 2, 0], [2, 0, IGNORE]])


def test_tally_by_hand():
    (rows,) = tally(HEATMAPS[None], TRUTH, [7, 3], image=4)
    assert rows.image.tolist() == [4, 4, 4]
    assert rows.label.tolist() == [0, 7, 3]
    assert rows.true.tolist() == [3, 3, 2]
    # At 0.5 the mask is 1 2 0 / 1 2 0 / 1 0 (ignored): 0.5 is reached and the first class wins.
    assert rows.claimed[:, HALF].tolist() == [3, 3, 2]
    assert rows.hits[:, HALF].tolist() == [3, 2, 1]
    # At 0.51 the tie at 0.5 is background; at 0.99 everything is.
    assert rows.claimed[:, HALF + 1].tolist() == [4, 2, 2]
    assert rows.hits[:, HALF + 1].tolist() == [3, 1, 1]
    assert rows.claimed[:, -1].tolist() == [8, 0, 0]
    assert rows.hits[:, -1].tolist() == [3, 0, 0]
    # At 0.01 only the pixels below it are: 0.2 of class 2, 0.1 of class 2 and 0.3 of class 1.
    assert rows.claimed[:, 0].tolist() == [0, 4, 4]
    assert all(part.dtype == torch.int64 for part in vars(rows).values())


def test_curve_by_hand():
    (rows,) = tally(HEATMAPS[None], TRUTH, [7, 3], image=0)
    found = curve(rows)
    assert found.miou.shape == (1, 99)
    same = (1 + 2 / 3 + 1 / 2) / 3
    assert at(found, HALF) == pytest.approx([(1 + 2 / 4 + 1 / 3) / 3, same, same, same])
    # Nothing but background: its IoU is 3 / 8; the classes are true, so they count with 0.
    assert at(found, -1) == pytest.approx([3 / 8 / 3, 3 / 8 / 3, 1 / 3, 6 / 11 / 3])
    assert class_ious(rows, 0.5) == pytest.approx({0: 1, 3: 1 / 3, 7: 2 / 4})


def test_classes_without_pixels_do_not_count():
    heatmaps = torch.tensor([[[0.9, 0.9, 0.2]], [[0.1, 0.1, 0.1]]])
    (rows,) = tally(heatmaps[None], torch.tensor([[1, 1, 1]]), [1, 2], 0)
    assert class_ious(rows, 0.1) == {1: 1.0}  # neither background nor class 2 is true or claimed
    assert curve(rows).miou[0, threshold_index(0.1)] == 1
    assert class_ious(rows, 0.5) == pytest.approx({0: 0, 1: 2 / 3})  # claimed, never true
    assert curve(rows).miou[0, HALF].item() == pytest.approx(1 / 3)
    assert curve(rows).recall[0, HALF].item() == pytest.approx((2 / 3 + 0) / 2)


def test_pixels_are_pooled_over_images():
    """Class 1 is 1 of 1 pixels right in a small image and 0 of 9 in a large one."""
    small = (np.ones((1, 1, 1), np.float32), np.ones((1, 1), np.uint8), [1])
    large = (np.zeros((1, 3, 3), np.float32), np.ones((3, 3), np.uint8), [1])
    both = pooled([small, large])
    assert class_ious(both, 0.5) == pytest.approx({0: 0, 1: 1 / 10})
    assert curve(both).miou[0, HALF].item() == pytest.approx(1 / 20)
    alone = [curve(both.select(both.image == number)).miou[0, HALF] for number in (0, 1)]
    assert alone == [1, 0]  # their mean would be 1 / 2


@given(scenes())
def test_agrees_with_a_plain_loop(images):
    rows = pooled(images)
    found = curve(rows)
    for index, threshold in enumerate(THRESHOLDS):
        means, ious = naive(images, threshold)
        np.testing.assert_allclose(at(found, index), means, rtol=1e-12)
        if threshold in (0.01, 0.29, 0.5, 0.59):
            assert class_ious(rows, threshold) == pytest.approx(ious)


@given(scenes(), st.sampled_from([0.01, 0.29, 0.3, 0.5, 0.58, 0.99]))
def test_claims_are_those_of_an_alignments_mask(images, threshold):
    heatmaps, truth, labels = images[0]
    nothing = np.zeros(0, np.float32)
    empty = dict.fromkeys(("losses", "elbo", "scores"), nothing)
    phrases, image = tuple(Phrase(str(label)) for label in labels), Image.new("RGB", (4, 3))
    alignment = Alignment(image, phrases, heatmaps=heatmaps, config=AlignConfig(), **empty)
    mask = alignment.mask(threshold)[truth != IGNORE]
    claimed = pooled(images[:1]).claimed[:, threshold_index(threshold)]
    assert claimed.tolist() == np.bincount(mask, minlength=len(labels) + 1).tolist()


@given(scenes())
def test_counts_hold_together(images):
    rows = pooled(images)
    assert (rows.hits >= 0).all()
    assert (rows.hits <= rows.claimed).all()
    assert (rows.hits <= rows.true[:, None]).all()
    background = rows.label == 0
    for part in (rows.hits, rows.claimed):
        assert (part[background].diff(dim=1) >= 0).all()  # a higher threshold adds background
        assert (part[~background].diff(dim=1) <= 0).all()
    for number, (_, truth, _) in enumerate(images):
        here = rows.select(rows.image == number)
        assert here.true.sum() == (truth != IGNORE).sum()
        assert (here.claimed.sum(0) == (truth != IGNORE).sum()).all()


@given(scenes())
def test_curves_hold_together(images):
    found = curve(pooled(images))
    if found.miou.isnan().any():
        assert all((truth == IGNORE).all() for _, truth, _ in images)
        return
    for name in NAMES:
        assert ((getattr(found, name) >= 0) & (getattr(found, name) <= 1 + 1e-12)).all()
        assert (found.miou <= getattr(found, name) + 1e-12).all()


def test_ignored_pixels_change_nothing():
    plain = random_images(3)
    changed = [(np.where(truth == IGNORE, 1 - maps, maps), truth, n) for maps, truth, n in plain]
    assert any((truth == IGNORE).any() for _, truth, _ in plain)
    same(curve(pooled(plain)), curve(pooled(changed)))


def test_variants_at_once_are_variants_one_at_a_time():
    torch.manual_seed(0)
    heatmaps, truth = torch.rand(5, 3, 8, 9), torch.randint(0, 4, (8, 9))
    together = tally(heatmaps, truth, [2, 9, 4], 1)
    assert len(together) == 5
    for variant, found in zip(heatmaps, together, strict=True):
        same(*tally(variant[None], truth, [2, 9, 4], 1), found)
    assert not torch.equal(together[0].hits, together[1].hits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_compare_as_float32(dtype):
    maps = torch.tensor([THRESHOLDS, THRESHOLDS[::-1]], dtype=dtype)[None, :, None]
    truth = torch.randint(0, 3, (1, 99), generator=torch.Generator().manual_seed(0))
    same(*tally(maps, truth, [1, 2], 0), *tally(maps.float(), truth, [1, 2], 0))


@pytest.mark.parametrize(
    ("heatmaps", "truth", "labels", "message"),
    [
        (torch.rand(2, 3, 3), TRUTH, [1, 2], "heatmaps are"),
        (torch.rand(1, 2, 3, 4), TRUTH, [1, 2], "heatmaps are"),
        (torch.rand(1, 2, 3, 3), TRUTH, [1], "labels are 1"),
        (torch.rand(1, 0, 3, 3), TRUTH, [], "N >= 1"),
        (torch.rand(1, 2, 3, 3), TRUTH.float(), [1, 2], "integers"),
        (torch.rand(1, 2, 3, 3), TRUTH, [0, 1], "numbers >= 1"),
        (torch.rand(1, 2, 3, 3), TRUTH, [5, 5], "different"),
        (torch.rand(1, 1, 3, 3), TRUTH, [1], "a pixel of truth is 2; allowed: 0, 1, 255"),
        (torch.rand(1, 2, 3, 3), -TRUTH, [1, 2], "a pixel of truth is -1"),
        (torch.full((1, 2, 3, 3), torch.nan), TRUTH, [1, 2], "image 6 hold NaN"),
    ],
)
def test_what_does_not_fit_is_refused(heatmaps, truth, labels, message):
    with pytest.raises(ValueError, match=message):
        tally(heatmaps, truth, labels, 6)


def test_weights_are_repetitions_of_images():
    images, often = random_images(4), [0, 3, 1, 2]
    repeated = [image for image, n in zip(images, often, strict=True) for _ in range(n)]
    weights = torch.tensor([often, [1, 1, 1, 1]], dtype=torch.float64)
    found, once = curve(pooled(images), weights), curve(pooled(images))
    expected = curve(pooled(repeated))
    for name in NAMES:
        assert getattr(found, name).shape == (2, 99)
        assert torch.equal(getattr(found, name)[0], getattr(expected, name)[0])
        assert torch.equal(getattr(found, name)[1], getattr(once, name)[0])  # no weights at all
        assert not torch.equal(getattr(found, name)[1], getattr(expected, name)[0])


def test_a_class_that_was_not_drawn_is_left_out():
    right = (np.ones((1, 1, 2), np.float32), np.ones((1, 2), np.uint8), [1])
    wrong = (np.zeros((1, 1, 2), np.float32), np.ones((1, 2), np.uint8), [2])
    weights = torch.tensor([[1, 1], [2, 0], [0, 2]], dtype=torch.float64)
    miou = curve(pooled([right, wrong]), weights).miou[:, HALF]
    assert miou.tolist() == pytest.approx([1 / 3, 1, 0])


def test_images_keep_their_numbers():
    rows = pooled(random_images(5))
    kept = torch.tensor([True, False, True, False, True])
    part = rows.select(kept[rows.image])
    assert part.image.unique().tolist() == [0, 2, 4]
    same(curve(part), curve(rows, kept[None].double()))


def test_bootstrap_weights():
    weights = bootstrap_weights(40, 500, seed=3)
    assert weights.shape == (500, 40)
    assert weights.dtype == torch.float64
    assert (weights.sum(1) == 40).all()
    assert ((weights >= 0) & (weights == weights.round())).all()
    assert torch.equal(weights, bootstrap_weights(40, 500, seed=3))
    assert not torch.equal(weights, bootstrap_weights(40, 500, seed=4))
    # A count is binomial(40, 1 / 40): mean 1, variance 0.975; 20000 of them.
    assert weights.mean(0).sub(1).abs().max() < 0.25
    assert weights.var().item() == pytest.approx(0.975, abs=0.05)


def test_interval_of_known_values():
    shuffled = torch.arange(101.0)[torch.randperm(101, generator=torch.Generator().manual_seed(0))]
    assert interval(shuffled) == pytest.approx((2.5, 97.5))
    assert interval(torch.full((9,), 4.0)) == (4, 4)
    unknown = float("nan")  # what could not be measured is left out
    assert interval(torch.tensor([1.0, unknown, 3.0])) == interval(torch.tensor([1.0, 3.0]))
    assert all(np.isnan(interval(torch.tensor([unknown]))))


def test_figures_at_a_threshold():
    rows, weights = pooled(random_images(12)), bootstrap_weights(12, 200)
    found, drawn = figures(rows, weights, 0.5)
    point = curve(rows)
    assert found.threshold == 0.5
    shown = [getattr(found, name) for name in NAMES]
    assert shown == pytest.approx([100 * value for value in at(point, HALF)])
    torch.testing.assert_close(drawn, 100 * curve(rows, weights).miou[:, HALF])
    assert (found.miou_low, found.miou_high) == interval(drawn)
    assert found.miou_low < found.miou < found.miou_high
    with pytest.raises(ValueError, match="threshold is 0"):
        figures(rows, weights, 0.0)


def test_the_oracle_chooses_in_each_resample():
    rows, weights = pooled(random_images(8)), bootstrap_weights(8, 100)
    found, best = figures(rows, weights, None)
    fixed = torch.stack([figures(rows, weights, tau)[1] for tau in THRESHOLDS])
    assert torch.equal(best, fixed.amax(0))
    assert (best > fixed[threshold_index(found.threshold)]).any()
    points = [figures(rows, weights, tau)[0] for tau in THRESHOLDS]
    assert found.miou == max(point.miou for point in points)
    (chosen,) = (point for point in points if point.threshold == found.threshold)
    assert (found.miou, found.precision, found.f1) == (chosen.miou, chosen.precision, chosen.f1)


def test_a_paired_difference_is_narrower_than_its_parts():
    """A variant that is a little worse everywhere: certain when paired, drowned when not."""
    images = random_images(30)
    worse = [(np.where(maps > 0.95, 1 - maps, maps), truth, n) for maps, truth, n in images]
    weights = bootstrap_weights(30, 300)
    (better, first), (lesser, second) = (
        figures(pooled(part), weights, 0.5) for part in (images, worse)
    )
    assert first.shape == second.shape == (300,)
    low, high = interval(first - second)
    assert 0 < low < better.miou - lesser.miou < high
    assert high - low < min(better.miou_high - better.miou_low, lesser.miou_high - lesser.miou_low)
    assert better.miou_low < lesser.miou_high


def test_agrees_with_torchmetrics():
    classification = pytest.importorskip("torchmetrics.classification")
    images = random_images(6)
    rows = pooled(images)
    for threshold in (0.05, 0.5, 0.9):
        each, mean = (
            classification.MulticlassJaccardIndex(7, average=average, ignore_index=IGNORE)
            for average in ("none", "macro")
        )
        for heatmaps, truth, labels in images:
            number = np.array([0, *labels, *[IGNORE] * (IGNORE - len(labels))])
            known = torch.from_numpy(number[truth])
            guess = torch.from_numpy(number[mask_of(heatmaps, threshold)])
            each.update(guess, known)
            mean.update(guess, known)
        ious = class_ious(rows, threshold)
        assert each.compute().tolist() == pytest.approx([ious.get(n, 0) for n in range(7)])
        found = curve(rows).miou[0, threshold_index(threshold)].item()
        assert found == pytest.approx(mean.compute().item())
