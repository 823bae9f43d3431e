"""Are probabilities probabilities? Temperature, reliability and calibration error on scenes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.bench.fitting import near_objects

BINS = 20


@dataclass(frozen=True)
class Reliability:
    """How often the most probable label is right, by how probable it is said to be.

    By bin of confidence: its pixels, their mean confidence and the share that is right.
    """

    pixels: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of both, weighted by pixels."""
        whole = max(1, sum(self.pixels))
        triples = zip(self.pixels, self.confidence, self.accuracy, strict=True)
        return sum(count * abs(said - right) for count, said, right in triples) / whole


class ReliabilityCounter:
    """Adds up pixels by confidence, over all of a picture or over objects and their borders."""

    def __init__(self) -> None:
        self.sums = torch.zeros(3, BINS, dtype=torch.float64)

    def add(self, probabilities: Tensor, truth: Tensor, objects_only: bool = False) -> None:
        """Probabilities [N + 1, H, W] and the true labels int64 [H, W]."""
        said, label = probabilities.max(0)
        chosen = near_objects(truth) if objects_only else torch.ones_like(truth, dtype=torch.bool)
        said, right = said[chosen].double(), (label == truth)[chosen].double()
        place = (said * BINS).long().clamp_max(BINS - 1)
        for row, values in enumerate((torch.ones_like(said), said, right)):
            self.sums[row] += torch.bincount(place, values, minlength=BINS)

    def reliability(self) -> Reliability:
        """What was counted."""
        pixels, said, right = self.sums
        means = [(values / pixels.clamp_min(1)).tolist() for values in (said, right)]
        return Reliability(tuple(pixels.long().tolist()), *(tuple(column) for column in means))
