"""Metrics: pixels pooled over a dataset, at every threshold, resampled by image; CLIP's score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pixalign.backbones.clip import Clip
from pixalign.backbones.load import resolve_device
from pixalign.backbones.locations import located
from pixalign.core.checks import check_choice

THRESHOLDS: tuple[float, ...] = tuple(step / 100 for step in range(1, 100))
IGNORE = 255  # the label of pixels that are not counted anywhere

# A divisor instead of 0: every numerator is 0 there.
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Tally:
    """Pixels of R (image, class) pairs at T thresholds, all int64 on the CPU.

    ``image`` [R] counts images from 0. ``label`` [R] is the class's number in the whole dataset:
    0 is the background, 1 + c class c. ``true`` [R] are its true pixels, ``claimed`` [R, T] the
    pixels predicted to be of it and ``hits`` [R, T] those of them that are.
    """

    image: Tensor
    label: Tensor
    true: Tensor
    hits: Tensor
    claimed: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[Tally]) -> Tally:
        """The rows of all parts, one or more, in their order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(torch.cat, columns))

    def ious(self) -> Tensor:
        """float64 [R, T]: each pair's own IoU; 0 where it has no pixel at all."""
        union = self.claimed + self.true[:, None] - self.hits
        return self.hits.double() / union.clamp_min(1)

    def select(self, rows: Tensor) -> Tally:
        """The rows where bool [R] is true."""
        return Tally(*(column[rows] for column in vars(self).values()))

    def at(self, threshold: float) -> Tally:
        """The same rows at one of THRESHOLDS: T = 1."""
        index = [threshold_index(threshold)]
        return replace(self, hits=self.hits[:, index], claimed=self.claimed[:, index])


@dataclass(frozen=True, eq=False)
class Curve:
    """What B weightings of the images give at each threshold: float64 [B, T] in [0, 1] each.

    All are means over the classes with true or predicted pixels, the background among them;
    NaN where a weighting leaves no pixel.
    """

    miou: Tensor
    precision: Tensor
    recall: Tensor
    f1: Tensor


@dataclass(frozen=True)
class Figures:
    """One variant: values in percent at its threshold, with a 95 % bootstrap interval of mIoU."""

    threshold: float
    miou: float
    miou_low: float
    miou_high: float
    precision: float
    recall: float
    f1: float


def nearest_threshold(value: float) -> float:
    """The one of THRESHOLDS that is nearest."""
    return min(THRESHOLDS, key=lambda threshold: abs(threshold - value))


def threshold_index(threshold: float) -> int:
    """Where a threshold stands in THRESHOLDS."""
    nearest = nearest_threshold(threshold)
    if not abs(nearest - threshold) <= 1e-6:
        options = f"{THRESHOLDS[0]}, {THRESHOLDS[1]}, ..., {THRESHOLDS[-1]}"
        raise ValueError(f"threshold is {threshold!r}; allowed: {options}")
    return THRESHOLDS.index(nearest)


def tally(heatmaps: Tensor, truth: Tensor, labels: Sequence[int], image: int) -> list[Tally]:
    """One Tally of N + 1 rows, background first, for each of V variants of an image.

    heatmaps float [V, N, H, W]; truth integer [H, W]: 0 background, i for the class
    ``labels[i - 1]``, IGNORE. ``labels`` are numbers of the dataset's classes as in
    ``Tally.label``, so 1 or higher. At a threshold a pixel belongs to the class with the highest
    heatmap (the first of several) where that reaches the threshold, else to the background.
    """
    variants, classes, steps = len(heatmaps), len(labels), len(THRESHOLDS)
    _check(heatmaps, truth, labels)
    known = truth.to(heatmaps.device, torch.int64).flatten()
    values, best = heatmaps.float().flatten(2).max(1)
    if values.isnan().any():
        raise ValueError(f"the heatmaps of image {image} hold NaN")
    counted = known != IGNORE
    known, values, best = known[counted], values[:, counted], best[:, counted]
    thresholds = torch.tensor(THRESHOLDS, dtype=torch.float32, device=values.device)
    reached = torch.bucketize(values, thresholds, right=True)
    kind = (best + 1 == known) + 2 * (known == 0)  # 1 is a hit, 2 background, 0 another class
    variant = torch.arange(variants, device=values.device)[:, None]
    index = ((variant * classes + best) * 3 + kind) * (steps + 1) + reached
    counts = torch.bincount(index.flatten(), minlength=variants * classes * 3 * (steps + 1))
    counts = counts.cpu().view(variants, classes, 3, steps + 1)
    all_kinds, (_, right, background) = counts.sum(2), counts.unbind(2)
    above = [part.flip(-1).cumsum(-1).flip(-1)[..., 1:] for part in (right, all_kinds)]
    below = [part.sum(1, keepdim=True).cumsum(-1)[..., :-1] for part in (background, all_kinds)]
    hits, claimed = (torch.cat(parts, 1) for parts in zip(below, above, strict=True))
    true = torch.bincount(known, minlength=classes + 1).cpu()
    images, numbers = torch.full((classes + 1,), image), torch.tensor([0, *labels])
    return [Tally(images, numbers, true, *pair) for pair in zip(hits, claimed, strict=True)]


def _check(heatmaps: Tensor, truth: Tensor, labels: Sequence[int]) -> None:
    """Raise a ValueError unless everything fits together."""
    shape, size = tuple(heatmaps.shape), tuple(truth.shape)
    fits = len(shape) == 4 and shape[1:] == (len(labels), *size) and labels
    if not fits or truth.is_floating_point():
        given = f"{shape}, truth is {truth.dtype} {size}, labels are {len(labels)}"
        needed = "[V, N, H, W], truth integers [H, W] and N labels, N >= 1"
        raise ValueError(f"heatmaps are {given}; allowed: {needed}")
    if min(labels) < 1 or len(set(labels)) < len(labels) or len(labels) >= IGNORE:
        raise ValueError(f"labels are {list(labels)}; allowed: up to 254 different numbers >= 1")
    pixels = truth.long()
    odd = pixels[((pixels < 0) | (pixels > len(labels))) & (pixels != IGNORE)]
    if len(odd):
        check_choice("a pixel of truth", int(odd[0]), (*range(len(labels) + 1), IGNORE))


def _pooled(tally: Tally, weights: Tensor | None) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Each class's label, hits [B, T], claimed [B, T] and true [B, 1]: float64 weighted sums."""
    steps = tally.hits.shape[1]
    counts = torch.cat([tally.hits, tally.claimed, tally.true[:, None]], 1).double()
    for label in np.unique(tally.label.numpy()).tolist():
        rows = (tally.label == label).nonzero()[:, 0]
        once = torch.ones(1, len(rows), dtype=torch.float64)
        often = once if weights is None else weights[:, tally.image[rows]]
        sums = often @ counts[rows]
        yield label, sums[:, :steps], sums[:, steps:-1], sums[:, -1:]


def curve(tally: Tally, weights: Tensor | None = None) -> Curve:
    """The metrics at each of the tally's thresholds.

    weights float64 [B, images] say how often each image counts (None: each once, B = 1). A class
    without pixels under a weighting is left out of that weighting's means.
    """
    shape = (1 if weights is None else len(weights), tally.hits.shape[1])
    miou, precision, recall, f1, classes = torch.zeros(5, *shape, dtype=torch.float64)
    for _, hits, claimed, true in _pooled(tally, weights):
        either = claimed + true
        miou += hits / (either - hits).clamp_min(_TINY)
        precision += hits / claimed.clamp_min(_TINY)
        recall += hits / true.clamp_min(_TINY)
        f1 += 2 * hits / either.clamp_min(_TINY)
        classes += either > 0
    return Curve(miou / classes, precision / classes, recall / classes, f1 / classes)


def class_ious(tally: Tally, threshold: float) -> dict[int, float]:
    """The IoU in [0, 1] of each label with true or predicted pixels, at one of THRESHOLDS."""
    return {
        label: float(hits / (claimed + true - hits))
        for label, hits, claimed, true in _pooled(tally.at(threshold), None)
        if claimed + true > 0
    }


def bootstrap_weights(images: int, draws: int, seed: int = 0) -> Tensor:
    """float64 [draws, images]: how often each image comes up in ``images`` draws of one."""
    picks = np.random.default_rng(seed).integers(images, size=(draws, images))
    places = (picks + images * np.arange(draws)[:, None]).ravel()
    counts = np.bincount(places, minlength=draws * images)
    return torch.from_numpy(counts.reshape(draws, images)).double()


def interval(values: Tensor) -> tuple[float, float]:
    """The percentile interval that holds the middle 95 % of values [B].

    NaN, a resample in which there was nothing to measure, is left out; NaN where that is all.
    """
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = values.double().nanquantile(ends).tolist()
    return low, high


def figures(tally: Tally, weights: Tensor, threshold: float | None) -> tuple[Figures, Tensor]:
    """A variant's figures, and its mIoU in percent under each weighting: float64 [B].

    Two variants under the same weights differ, paired, by the difference of the second values.
    ``threshold`` None is the oracle: the best of the curve, chosen again under each weighting.
    """
    rows = tally if threshold is None else tally.at(threshold)
    point, drawn = curve(rows), curve(rows, weights)
    best = int(point.miou[0].argmax())
    values = 100 * drawn.miou.amax(1)
    low, high = interval(values)
    means = {name: 100 * float(column[0, best]) for name, column in vars(point).items()}
    chosen = THRESHOLDS[best if threshold is None else threshold_index(threshold)]
    return Figures(threshold=chosen, miou_low=low, miou_high=high, **means), values


def equal_parts(values: Tensor, parts: int) -> Tensor:
    """int64 [R]: into which of ``parts`` each of values [R] falls, 0 for the lowest.

    Parts differ by one member at most; of equal values the earlier stand lower.
    """
    ranks = values.argsort(stable=True).argsort()
    return ranks * parts // max(len(values), 1)


def pair_means(values: Tensor, image: Tensor, weights: Tensor) -> Tensor:
    """float64 [B]: the mean of values [R] of pairs whose images [R] count as weights [B, images].

    NaN where a weighting leaves no pair.
    """
    sums, pairs = torch.zeros(2, weights.shape[1], dtype=torch.float64)
    sums.index_add_(0, image, values.double())
    pairs.index_add_(0, image, torch.ones(len(values), dtype=torch.float64))
    means: Tensor = (weights @ sums) / (weights @ pairs)
    return means


def tertiles(counts: Mapping[str, float]) -> dict[str, str]:
    """Each class's group: "rare" up to the 33rd percentile of the counts, "common" up to the 66th.

    Beyond that it is "frequent". Classes of the same count share a group.
    """
    if not counts:
        return {}
    edges = np.percentile(list(counts.values()), [33, 66])
    return {
        name: ("rare", "common", "frequent")[int(np.searchsorted(edges, count))]
        for name, count in counts.items()
    }


@dataclass(frozen=True, eq=False)
class ClipScores:
    """100 times the cosine of each picture and its text, float64 [B], and by which CLIP."""

    scores: np.ndarray
    model: str

    @property
    def mean(self) -> float:
        """Over the pictures."""
        return float(self.scores.mean())

    def __str__(self) -> str:
        return f"CLIP score {self.mean:.2f} ({self.model}, {len(self.scores)} pictures)"


def clip_score(
    images: Sequence[Image.Image],
    texts: Sequence[str],
    *,
    model: str = "lab:clip",
    device: str = "auto",
) -> ClipScores:
    """How well each picture goes with its text, by a CLIP of the hub, a folder or the lab.

    Scores of different CLIPs cannot be compared; the result says whose they are.
    """
    if not images or len(images) != len(texts):
        raise ValueError(
            f"there are {len(images)} images and {len(texts)} texts; allowed: as many, 1 or more"
        )
    clip = Clip(located(model), resolve_device(device))
    scores = 100 * (clip.see(images) * clip.read(texts)).sum(1)
    return ClipScores(scores.double().cpu().numpy(), model)
