"""A row of a table in figures: all its pairs, and by area, visible share, frequency and so on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
        miou = math.fsum(figure.miou for figure, _ in each) / len(each)
        return miou, torch.stack([drawn for _, drawn in each]).mean(0)


def effect(own: Resampled, base: Resampled | None) -> list[float | None] | None:
    """A paired difference in points with its interval; None without a baseline."""
    if base is None:
        return None
    return [rounded(own[0] - base[0]), *map(rounded, interval(own[1] - base[1]))]


def rounded(value: float, digits: int = 3) -> float | None:
    """None for what could not be measured."""
    return None if math.isnan(value) else round(value, digits)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A row beside its baseline, if it has one, on the same images under the same weightings."""

    own: MeasuredRow
    base: MeasuredRow | None
    images: Sequence[ImageRow]
    weights: Tensor

    def effects(self) -> dict[str, Any]:
        """The difference in mIoU by kind of threshold."""
        base = self.base
        return {k: effect(self.own.miou(k), base.miou(k) if base else None) for k in KINDS}

    def by_area(self) -> list[dict[str, Any]]:
        """IoU of (image, class) pairs in tenths of equal count by the share of the image."""
        shares = [share for image in self.images for share in (-1.0, *image.area)]
        areas, objects = torch.tensor(shares, dtype=torch.float64), self.own.label > 0
        tenth = torch.full_like(self.own.label, -1)
        tenth[objects] = equal_parts(areas[objects], TENTHS)
        groups = []
        for number in sorted(set(tenth.tolist()) - {-1}):
            chosen = tenth == number
            low, high = (round(float(end), 5) for end in areas[chosen].aminmax())
            groups.append({"from": low, "to": high, **self._pairs(chosen)})
        return groups

    def by_visible_share(self) -> list[dict[str, Any]] | None:
        """IoU of (image, class) pairs by the share of the class that nothing covers."""
        if any(image.visible is None for image in self.images):
            return None
        shares = torch.tensor([x for image in self.images for x in (-1.0, *(image.visible or ()))])
        return [
            {"from": low, "to": high, **self._pairs(chosen)}
            for low, high in pairwise(VISIBLE)
            if (chosen := (shares > low) & (shares <= high)).any()
        ]

    def by_count(self) -> dict[str, Any]:
        """mIoU of the images with so many classes."""
        counts = torch.tensor([len(image.labels) for image in self.images])
        return {
            str(count): {
                "images": int((counts == count).sum()),
                **self._values("miou", (counts == count)[self.own.image]),
            }
            for count in sorted(set(counts.tolist()))
        }

    def by_frequency(self, header: Mapping[str, Any]) -> dict[str, Any] | None:
        """Mean IoU of the classes that training showed rarely, sometimes and often."""
        counts, classes = header["counts"], header["classes"]
        if counts is None:
            return None
        group_of = tertiles({name: counts[name] for name in classes})
        by_group = {}
        for group in ("rare", "common", "frequent"):
            labels = [number for number, name in enumerate(classes, 1) if group_of[name] == group]
            chosen = torch.isin(self.own.label, torch.tensor(labels, dtype=torch.int64))
            by_group[group] = {
                "classes": len(set(self.own.label[chosen].tolist())),
                **self._values("miou", chosen),
                "fixed": self._values("miou", chosen, "fixed"),
            }
        return by_group

    def by_dial(self) -> dict[str, Any] | None:
        """IoU of the class that a dial changes, at each of its levels; where it can be seen."""
        if all(image.target is None for image in self.images):
            return None
        targets = torch.tensor([-1 if i.target is None else i.target + 1 for i in self.images])
        is_target = self.own.label == targets[self.own.image]
        by_level = {}
        for group in dict.fromkeys(image.group for image in self.images):
            at_level = torch.tensor([image.group == group for image in self.images])
            chosen = is_target & at_level[self.own.image]
            by_level[group] = self._pairs(chosen) | {"fixed": self._values("iou", chosen, "fixed")}
        return by_level

    def _pairs(self, chosen: Tensor) -> dict[str, Any]:
        return {"pairs": int(chosen.sum()), **self._values("iou", chosen)}

    def _values(self, name: str, chosen: Tensor, kind: str = "oracle") -> dict[str, Any]:
        """The pairs' "iou" or the classes' "miou" where bool [R] is true: interval and effect."""
        measure = MeasuredRow.pairs if name == "iou" else MeasuredRow.classes
        own = measure(self.own, kind, chosen, self.weights)
        base = measure(self.base, kind, chosen, self.weights) if self.base else None
        low, high = map(rounded, interval(own[1]))
        return {name: rounded(own[0]), "low": low, "high": high, "effect": effect(own, base)}
