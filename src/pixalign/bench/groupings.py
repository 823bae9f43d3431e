"""A row of a table in figures: all its pairs, and by area, visible share, frequency and so on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pixalign.bench.metrics import (
    Figures,
    Tally,
    class_ious,
    curve,
    equal_parts,
    figures,
    interval,
    pair_means,
    tertiles,
)
from pixalign.bench.store import ImageRow

KINDS = ("oracle", "fixed")  # the best threshold on the images themselves; the config's
TENTHS = 10  # buckets of pairs by area
VISIBLE = (0.0, 0.5, 0.75, 0.95, 1.0)  # edges of the buckets of pairs by visible share

Resampled = tuple[float, Tensor]  # a value in percent, and the same under each weighting [B]


@dataclass(frozen=True, eq=False)
class MeasuredRow:
    """One row: its pooled pixels under each draw of its exponents, and what they come to by kind.

    ``thresholds`` are those of the draws. All values are means over the draws.
    """

    tallies: tuple[Tally, ...]
    figures: Mapping[str, Figures]
    drawn: Mapping[str, Tensor]
    thresholds: Mapping[str, tuple[float, ...]]

    @property
    def image(self) -> Tensor:
        """int64 [R]: the pairs' images."""
        return self.tallies[0].image

    @property
    def label(self) -> Tensor:
        """int64 [R]: the pairs' classes, 0 for the background."""
        return self.tallies[0].label

    def _at(self, kind: str) -> list[tuple[Tally, float]]:
        return list(zip(self.tallies, self.thresholds[kind], strict=True))

    def ious(self, kind: str) -> Tensor:
        """float64 [R]: each pair's IoU in percent."""
        each = [100 * tally.at(threshold).ious()[:, 0] for tally, threshold in self._at(kind)]
        return torch.stack(each).mean(0)

    def class_ious(self, kind: str) -> dict[int, float]:
        """The pooled IoU in percent of each class that has any pixel."""
        each = [class_ious(tally, threshold) for tally, threshold in self._at(kind)]
        labels = sorted({label for ious in each for label in ious})
        return {
            label: 100 * math.fsum(ious.get(label, 0.0) for ious in each) / len(each)
            for label in labels
        }

    def curve(self) -> Tensor:
        """float64 [T]: the mIoU in percent at every threshold."""
        return 100 * torch.stack([curve(tally).miou[0] for tally in self.tallies]).mean(0)

    def miou(self, kind: str) -> Resampled:
        """The row's mIoU."""
        return self.figures[kind].miou, self.drawn[kind]

    def pairs(self, kind: str, chosen: Tensor, weights: Tensor) -> Resampled:
        """The mean IoU of the pairs where bool [R] is true."""
        ious = self.ious(kind)[chosen]
        return float(ious.mean()), pair_means(ious, self.image[chosen], weights)

    def classes(self, kind: str, chosen: Tensor, weights: Tensor) -> Resampled:
        """The mean over classes of the pooled IoU of the rows where bool [R] is true."""
        each = [figures(tally.select(chosen), weights, at) for tally, at in self._at(kind)]
        miou = math.fsum(found.miou for found, _ in each) / len(each)
        return miou, torch.stack([drawn for _, drawn in each]).mean(0)


How = Callable[[MeasuredRow, str, Tensor, Tensor], Resampled]  # `MeasuredRow.pairs` or `.classes`


def effect(own: Resampled, base: Resampled | None) -> list[float | None] | None:
    """A paired difference in points with its interval; None without a baseline."""
    if base is None:
        return None
    return [rounded(own[0] - base[0]), *map(rounded, interval(own[1] - base[1]))]


def by_area(
    own: MeasuredRow, base: MeasuredRow | None, images: Sequence[ImageRow], weights: Tensor
) -> list[dict[str, Any]]:
    """IoU of (image, class) pairs in tenths of equal count by the class's share of the image."""
    areas = torch.tensor([x for image in images for x in (-1.0, *image.area)], dtype=torch.float64)
    foreground = own.label > 0
    tenth = torch.full_like(own.label, -1)
    tenth[foreground] = equal_parts(areas[foreground], TENTHS)
    tenths = []
    for number in range(TENTHS):
        chosen = tenth == number
        if not chosen.any():
            continue
        inside = areas[chosen]
        limits = {"from": round(float(inside.min()), 5), "to": round(float(inside.max()), 5)}
        values = _compared("iou", "oracle", MeasuredRow.pairs, own, base, chosen, weights)
        tenths.append({**limits, "pairs": len(inside), **values})
    return tenths


def by_visible_share(
    own: MeasuredRow, base: MeasuredRow | None, images: Sequence[ImageRow], weights: Tensor
) -> list[dict[str, Any]] | None:
    """IoU of (image, class) pairs by the share of the class that nothing covers."""
    if any(image.visible is None for image in images):
        return None
    shares = torch.tensor([x for image in images for x in (-1.0, *(image.visible or ()))])
    groups = []
    for low, high in pairwise(VISIBLE):
        chosen = (shares > low) & (shares <= high)
        if chosen.any():
            values = _compared("iou", "oracle", MeasuredRow.pairs, own, base, chosen, weights)
            groups.append({"from": low, "to": high, "pairs": int(chosen.sum()), **values})
    return groups


def by_count(
    own: MeasuredRow, base: MeasuredRow | None, images: Sequence[ImageRow], weights: Tensor
) -> dict[str, Any]:
    """mIoU of the images with so many classes."""
    counts = torch.tensor([len(image.labels) for image in images])
    found = {}
    for count in sorted(set(counts.tolist())):
        chosen = (counts == count)[own.image]
        seen = {"images": int((counts == count).sum())}
        values = _compared("miou", "oracle", MeasuredRow.classes, own, base, chosen, weights)
        found[str(count)] = seen | values
    return found


def by_frequency(
    own: MeasuredRow, base: MeasuredRow | None, header: Mapping[str, Any], weights: Tensor
) -> dict[str, Any] | None:
    """Mean IoU of the classes that training showed rarely, sometimes and often."""
    counts, classes = header["counts"], header["classes"]
    if counts is None:
        return None
    missing = [name for name in classes if name not in counts]
    if missing:
        raise ValueError(f"counts have no {missing[0]!r}; allowed: a number for every class")
    group_of = tertiles({name: counts[name] for name in classes})
    found = {}
    for group in ("rare", "common", "frequent"):
        labels = [number for number, name in enumerate(classes, 1) if group_of[name] == group]
        chosen = torch.isin(own.label, torch.tensor(labels, dtype=torch.int64))
        seen = {"classes": len(set(own.label[chosen].tolist()))}
        found[group] = seen | _both("miou", MeasuredRow.classes, own, base, chosen, weights)
    return found


def by_dial(
    own: MeasuredRow, base: MeasuredRow | None, images: Sequence[ImageRow], weights: Tensor
) -> dict[str, Any] | None:
    """IoU of the class that a dial changes, at each of its levels; where it can be seen."""
    if all(image.target is None for image in images):
        return None
    targets = torch.tensor([-1 if i.target is None else i.target + 1 for i in images])
    numbers = {group: n for n, group in enumerate(dict.fromkeys(i.group for i in images))}
    level = torch.tensor([numbers[image.group] for image in images])
    is_target = own.label == targets[own.image]
    found = {}
    for group, number in numbers.items():
        chosen = is_target & (level[own.image] == number)
        pairs = {"pairs": int(chosen.sum())}
        found[group] = pairs | _both("iou", MeasuredRow.pairs, own, base, chosen, weights)
    return found


def _both(
    name: str, how: How, own: MeasuredRow, base: MeasuredRow | None, chosen: Tensor, weights: Tensor
) -> dict[str, Any]:
    """A value at the oracle's threshold, and as "fixed" at the config's."""
    oracle, fixed = (_compared(name, kind, how, own, base, chosen, weights) for kind in KINDS)
    return oracle | {"fixed": fixed}


def _compared(
    name: str,
    kind: str,
    how: How,
    own: MeasuredRow,
    base: MeasuredRow | None,
    chosen: Tensor,
    weights: Tensor,
) -> dict[str, Any]:
    """A value of the rows where bool [R] is true: its interval, and its effect."""
    point, drawn = how(own, kind, chosen, weights)
    low, high = interval(drawn)
    against = how(base, kind, chosen, weights) if base else None
    return {
        name: rounded(point),
        "low": rounded(low),
        "high": rounded(high),
        "effect": effect((point, drawn), against),
    }


def rounded(value: float, digits: int = 3) -> float | None:
    """None for what could not be measured."""
    return None if math.isnan(value) else round(value, digits)
