"""How a row's exponents come of its ELBO: the paper's rule, and the controls to compare it with.

Each rule gives D rows of exponents [D, N]. Controls keep the strength and change who gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores, exponents

DRAWS = 5  # orders that "shuffled" tries; the summary takes their mean
MOST_CLASSES = 6  # of which "best-order" tries all 720 orders

# From elbo [N], gamma, centred and an image's seed to exponents [D, N], which are all measured.
ExponentRule = Callable[[Tensor, float, bool, int], Tensor]


def by_elbo(elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """1 / S (line 7)."""
    return exponents(alignment_scores(elbo, gamma), centred)[None]


def shuffled(elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """The image's own exponents, each given to another class or the same, at random."""
    (powers,) = by_elbo(elbo, gamma, centred, seed)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(powers), generator=generator) for _ in range(DRAWS)]
    return torch.stack([powers[order] for order in orders])


def reversed_order(elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """Those of 1 - norm: the class of highest loss keeps its map."""
    return by_elbo(-elbo, gamma, centred, seed)


def inverted(elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """S itself: the wrong way round."""
    return 1 / by_elbo(elbo, gamma, centred, seed)


def every_order(elbo: Tensor, gamma: float, centred: bool, seed: int) -> Tensor:
    """[N!, N]: the exponents in every order, as they are first."""
    (powers,) = by_elbo(elbo, gamma, centred, seed)
    if len(powers) > MOST_CLASSES:
        raise ValueError(
            f"exponents 'best-order' try all orders of {len(powers)} classes; allowed: up to "
            f"{MOST_CLASSES}"
        )
    return torch.stack([powers[list(order)] for order in permutations(range(len(powers)))])


EXPONENTS: dict[str, ExponentRule] = {
    "elbo": by_elbo,
    "shuffled": shuffled,
    "reversed": reversed_order,
    "inverted": inverted,
    "best-order": every_order,
}
SUPERVISED = ("best-order",)  # of the D, the one that suits the truth best is kept
