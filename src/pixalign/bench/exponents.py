"""How a row's exponents and evidence come of its passes: the rule, and controls to compare it with.

Controls keep the strength and change who gets it, or where.
"""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores, exponents
from pixalign.core.values import Evidence

DRAWS = 5  # orders that "shuffled" tries; the summary takes their mean
MOST_CLASSES = 6  # of which "best-order" tries all 720 orders

EXPONENTS: dict[str, str] = {
    "elbo": "1 / S (line 7)",
    "shuffled": "the image's own, each given to another class or the same, at random",
    "reversed": "those of 1 - norm: the class of highest loss keeps its map",
    "inverted": "S itself: the wrong way round",
    "best-order": "in every order, as they are first; what suits the truth best is kept",
}
SUPERVISED = ("best-order",)
EVIDENCE: dict[str, str] = {
    "own": "the class's own",
    "exchanged": "that of the next class",
    "shifted": "the class's own, moved by half the picture",
    "own-noise": "the class's own, measured under noise that the others do not share",
}


def exponents_by(rule: str, elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """[D, N] for the ELBO [N] of an image with that seed, by a rule of EXPONENTS."""
    towards = -elbo if rule == "reversed" else elbo
    powers = exponents(alignment_scores(towards, gamma), centred)
    if rule == "inverted":
        powers = 1 / powers
    return powers[_orders(rule, len(powers), seed)]


def evidence_by(rule: str, evidence: Evidence) -> Evidence:
    """Evidence [N, h, w] as a rule of EVIDENCE gives it to the classes."""
    maps = torch.stack([evidence.projection, evidence.energy])
    if rule == "exchanged":
        maps = maps.roll(1, 1)
    elif rule == "shifted":
        maps = maps.roll((maps.shape[-2] // 2, maps.shape[-1] // 2), (-2, -1))
    return Evidence(*maps)


def _orders(rule: str, count: int, seed: int) -> Tensor:
    """int64 [D, N]: which class's exponent each class gets."""
    if rule == "shuffled":
        generator = torch.Generator().manual_seed(seed)
        return torch.stack([torch.randperm(count, generator=generator) for _ in range(DRAWS)])
    if rule != "best-order":
        return torch.arange(count)[None]
    if count > MOST_CLASSES:
        raise ValueError(
            f"exponents 'best-order' try all orders of {count} classes; allowed: up to "
            f"{MOST_CLASSES}"
        )
    return torch.tensor(list(permutations(range(count))))
