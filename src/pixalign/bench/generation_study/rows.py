"""The rows of the generation study: the methods, other strengths of the paper's, and controls."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.generation.methods import Elbo, GenerationMethod
from pixalign.generation.run import GENERATION_METHODS


class Constant(Elbo):
    """A control: every entity has the largest weight at every step."""

    name = "constant"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The strength itself."""
        return torch.full_like(errors, self.plan.settings.strength)


class Shuffled(Elbo):
    """A control: the method's own weights, given to the entities in random order."""

    name = "random order"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """Drawn anew at each step, from the picture's seed and the step."""
        seed = 1_000_003 * self.plan.requests[picture].seed + index
        order = torch.randperm(len(errors), generator=torch.Generator().manual_seed(seed))
        return super().weigh(errors, picture, index)[order]


class Reversed(Elbo):
    """A control: the entity that the step explains best weighs most."""

    name = "reversed"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The weights of the negated differences."""
        return super().weigh(-errors, picture, index)


@dataclass(frozen=True)
class Row:
    """A method and its strength."""

    label: str
    method: type[GenerationMethod]
    strength: float = 1.2


METHOD_ROWS = tuple(
    Row(name, GENERATION_METHODS[name]) for name in ("plain", "attend-excite", "syngen", "elbo")
)
CONTROL_ROWS = tuple(Row(kind.name, kind) for kind in (Constant, Shuffled, Reversed))
STRENGTH_ROWS = tuple(Row(f"1/γ = {s:g}", Elbo, s) for s in (1.1, 1.5, 2.0))


def rows_for(backbone: Backbone, controls: bool) -> list[Row]:
    """Plain and the paper's method, those of the others that know the family, and controls."""
    known = []
    for row in (*METHOD_ROWS, *((*CONTROL_ROWS, *STRENGTH_ROWS) if controls else ())):
        with suppress(ValueError):
            row.method.check(backbone)
            known.append(row)
    return known
