"""Attend-and-Excite: every noun of the prompt shall be attended to somewhere in the picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pixalign.generation.gradient_methods import STEP, LatentOptimization
from pixalign.generation.plan import GenerationPlan

TARGETS = {0: 0.05, 10: 0.5, 20: 0.8}  # attention that refinement is to reach, by step of 50
TRIES = 20  # moves of one refinement at most
_SHARPNESS = 100.0  # of the softmax over the tokens
_SIGMA = 0.5  # cells


class AttendExcite(LatentOptimization):
    """The latents move so that the least attended noun is attended to more.

    An entity's loss is 1 minus the highest attention to its noun, a picture's the largest of its
    entities. At a fifth and two fifths of the way, and at its start, the latents are refined until
    each noun's attention reaches a target. So many moves enlarge rounding: a picture may come out
    otherwise among others than alone, though the same call gives the same pictures.
    """

    name = "attend-excite"

    def __init__(self, plan: GenerationPlan) -> None:
        super().__init__(plan)
        steps = plan.settings.steps
        self.targets = {round(index * steps / 50): target for index, target in TARGETS.items()}
        self.scales = torch.linspace(1.0, 0.5, steps, dtype=torch.float64).sqrt().tolist()

    def step_size(self, index: int) -> float:
        """20 sqrt(s) with s falling evenly from 1 at the first step to 1/2 at the last."""
        return STEP * float(self.scales[index])

    def losses(self, picture: int, maps: Tensor) -> Tensor:
        """[N]: 1 - max of each noun's smoothed attention, from maps [L, h, w]."""
        # Nearly all attention goes to the start token; without it the others compete.
        tokens = (_SHARPNESS * maps[1:-1]).softmax(0)
        nouns = [
            tokens[[column - 1 for column in columns.head]].mean(0)
            for columns in self.plan.columns[picture]
        ]
        return 1 - smoothed(torch.stack(nouns)).amax((1, 2))

    def total(self, losses: Tensor) -> Tensor:
        """The largest loss."""
        return losses.max(0).values

    def refined(self, index: int, z: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Latents and slopes after moves of the pictures whose loss is above their target."""
        target = self.targets.get(index)
        if target is None:
            return z, slopes
        for _ in range(TRIES):
            above = [
                picture
                for picture in self.pictures
                if float(self.errors[picture][index].max()) > 1 - target
            ]
            if not above:
                break
            rows = torch.tensor(above, device=z.device)
            z = z.index_copy(0, rows, z[rows] - self.step_size(index) * slopes[rows])
            slopes = slopes.index_copy(0, rows, self.slopes(index, z, above))
        return z, slopes


def smoothed(maps: Tensor) -> Tensor:
    """Maps [N, h, w] under the published 3 x 3 weights, exp(-(x / (2 sigma)) ** 2), reflected.

    Sums of shifted maps, because the gradient of a reflecting border does not repeat on a GPU.
    """
    return _smoothed(_smoothed(maps, 1), 2)


def _smoothed(maps: Tensor, axis: int) -> Tensor:
    beside = math.exp(-((1 / (2 * _SIGMA)) ** 2))
    size = maps.shape[axis]
    wide = torch.cat([maps.narrow(axis, 1, 1), maps, maps.narrow(axis, size - 2, 1)], axis)
    before, here, after = (wide.narrow(axis, shift, size) for shift in range(3))
    return (here + beside * (before + after)) / (1 + 2 * beside)
