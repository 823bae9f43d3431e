"""When has the ELBO been asked often enough? Pure functions of losses."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores, exponents

DRAWS = 200  # resamples of the timesteps


def stages(count: int, size: int) -> list[list[int]]:
    """The indices 0 .. count - 1 in stages of about ``size``, each spread over the whole range.

    With 20 and 5: 2, 6, 10, 14, 18; then 0, 4 ...; each stage fills the middles of the widest gaps
    that the ones before left.
    """
    stride = max(1, round(count / size))
    offsets = sorted(range(stride), key=lambda offset: _bits(offset, stride))
    return [list(range((offset + stride // 2) % stride, count, stride)) for offset in offsets]


def _bits(value: int, below: int) -> int:
    """The bit-reversed value, in as many bits as ``below`` needs: 0, 2, 1, 3 for below 4."""
    width = max(1, (below - 1).bit_length())
    return int(f"{value:0{width}b}"[::-1], 2)


def expected_change(losses: Tensor, weights: Tensor, gamma: float, centred: bool) -> float:
    """By how much more timesteps would change the exponents: a share of 1 / gamma - 1.

    losses [N, T] at the timesteps seen so far, weights [T]. The timesteps are resampled, the same
    for all classes, since their noise is shared: so only differences between classes count, and
    changes of their order count as much as they change the exponents. Returns the mean, over
    resamples and classes, of the absolute difference to the exponents of the losses as they are.
    """
    if gamma == 1 or len(losses) == 1:
        return 0.0
    if losses.shape[1] == 1:
        return math.inf  # one timestep says nothing about others
    count = losses.shape[1]
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(count, (DRAWS, count), generator=generator)
    now = _powers(losses, weights, torch.arange(count)[None], gamma, centred)  # [N, 1]
    drawn = _powers(losses, weights, picks, gamma, centred)  # [N, DRAWS]
    return float((drawn - now).abs().mean()) / (1 / gamma - 1)


def _powers(losses: Tensor, weights: Tensor, picks: Tensor, gamma: float, centred: bool) -> Tensor:
    """[N, D]: the exponents under each of D choices of timesteps, picks [D, T']."""
    shares = weights[picks] / weights[picks].sum(1, keepdim=True)
    bounds = (losses.double()[:, picks] * shares).sum(2)
    return exponents(alignment_scores(bounds, gamma), centred)
