"""How a row's exponents come of its ELBO: the paper's rule, and the controls to compare it with.

Controls keep the strength and change who gets it.
"""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores, exponents

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


def exponents_by(rule: str, elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """[D, N] for the ELBO [N] of an image with that seed, by a rule of EXPONENTS."""
    towards = -elbo if rule == "reversed" else elbo
    powers = exponents(alignment_scores(towards, gamma), centred)
    if rule == "inverted":
        powers = 1 / powers
    return powers[_orders(rule, len(powers), seed)]


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
