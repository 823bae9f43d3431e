"""Are probabilities probabilities? Temperature, reliability and calibration error on scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

TEMPERATURES = tuple(round(0.02 * 1.15**step, 4) for step in range(24))  # 0.02 to 0.5
BINS = 20
BORDER = 3  # pixels around an object that count as its border


def logits(heatmaps: Tensor, threshold: float) -> Tensor:
    """[N + 1, H, W] of `Alignment.probs` before the temperature: the threshold is background's."""
    return torch.cat([torch.full_like(heatmaps[:1], threshold), heatmaps])


def best_temperature(
    heatmaps: Sequence[Tensor], truths: Sequence[Tensor], threshold: float
) -> float:
    """The temperature of highest likelihood of the true labels int64 [H, W].

    All pixels count half, and objects with their borders alone the other half: the background,
    which is most of a picture, is easy.
    """
    losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    for maps, truth in zip(heatmaps, truths, strict=True):
        values = logits(maps, threshold)
        own, near = values.gather(0, truth[None])[0], near_objects(truth)
        for place, temperature in enumerate(TEMPERATURES):
            spread = torch.logsumexp(values / temperature, 0) - own / temperature
            losses[place] += (spread.double().mean() + spread[near].double().mean()) / 2
    return TEMPERATURES[int(losses.argmin())]


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


def near_objects(truth: Tensor) -> Tensor:
    """bool [H, W]: the pixels of true objects, and those up to `BORDER` from one."""
    objects = (truth > 0).float()[None, None]
    return max_pool2d(objects, 2 * BORDER + 1, 1, BORDER)[0, 0] > 0
