"""The small immutable values that flow between the rooms of the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Size = tuple[int, int]  # (height, width), in this order everywhere


@dataclass(frozen=True)
class Phrase:
    """A class and the words that describe it in this image.

    ``Phrase("dog", "a golden dog")`` is reported as "dog"; the model reads "a golden dog".
    """

    name: str
    phrase: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "phrase", self.phrase or self.name)


@dataclass(frozen=True)
class TokenSpans:
    """Where the classes stand in one encoded prompt.

    ``columns[i]`` holds the text columns of class ``classes[i]`` (an index into the caller's
    list) in a cross-attention map with ``length`` columns.
    """

    prompt: str
    classes: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    length: int

    def averaging_matrix(self, class_count: int) -> Tensor:
        """[length, class_count]: a map times this is the mean of each class's columns, or 0."""
        matrix = torch.zeros(self.length, class_count)
        for index, columns in zip(self.classes, self.columns, strict=True):
            matrix[list(columns), index] = 1 / max(1, len(columns))
        return matrix


@dataclass(frozen=True)
class Layers:
    """A network's text-reading layers, in the order in which it runs them.

    One side of layer l's cells covers ``factors[l]`` latent positions; ``names[l]`` is such as
    "up-4-2", the second layer on the way up with factor 4; ``middle`` is the (fractional) index
    of the middle layer.
    """

    names: tuple[str, ...]
    factors: tuple[int, ...]
    middle: float

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class AttentionMaps:
    """What one image's collecting passes leave behind, averaged over heads and timesteps.

    ``cross[l]`` is layer l's map of every class, float32 [N, h_l, w_l]. ``self_attention`` are
    float32 [h*w, h*w] matrices over ``grid``, to be applied in order.
    """

    cross: tuple[Tensor, ...]
    layers: Layers
    self_attention: tuple[Tensor, ...]
    grid: Size


@dataclass(frozen=True)
class Scores:
    """The semantic strength of each class (Eq. 5): all float32.

    ``losses`` [N, T] is the mean squared epsilon-error, ``elbo`` [N] its weighted mean over
    the timesteps, ``scores`` [N] lies in [gamma, 1].
    """

    losses: Tensor
    elbo: Tensor
    scores: Tensor
    timesteps: tuple[float, ...]

    def __getitem__(self, classes: list[int]) -> Scores:
        """Those of some classes."""
        losses, elbo, scores = (x[classes] for x in (self.losses, self.elbo, self.scores))
        return Scores(losses, elbo, scores, self.timesteps)

    @classmethod
    def neutral(cls, class_count: int) -> Scores:
        """The scores of an uncalibrated alignment: every class keeps its map."""
        losses, scores = torch.empty(class_count, 0), torch.ones(class_count)
        return cls(losses, elbo=scores * torch.nan, scores=scores, timesteps=())


@dataclass(frozen=True)
class Evidence:
    """What the texts of N classes change at every latent position, float32 [N, h, w].

    With r what the network misses under the empty text and d_i what class i's text adds to its
    estimate, ``projection`` is the mean over timesteps of r d_i, ``energy`` of d_i^2, both in parts
    of the mean of r^2. The squared error under class i is r^2 - 2 projection + energy, so for
    comparing classes these two are all that there is.
    """

    projection: Tensor
    energy: Tensor


@dataclass(frozen=True)
class TextCondition:
    """Encoded prompts: ``embeds`` [P, L, D] and, on families that use it, ``pooled`` [P, D']."""

    embeds: Tensor
    pooled: Tensor | None = None

    def __len__(self) -> int:
        return len(self.embeds)

    def __getitem__(self, rows: Tensor) -> TextCondition:
        return TextCondition(self.embeds[rows], None if self.pooled is None else self.pooled[rows])

    def repeated(self, count: int) -> TextCondition:
        """The one prompt, ``count`` times."""
        return self[torch.zeros(count, dtype=torch.long, device=self.embeds.device)]

    @classmethod
    def concatenate(cls, parts: Sequence[TextCondition]) -> TextCondition:
        """All prompts of the parts, in order."""
        pooled = [part.pooled for part in parts if part.pooled is not None]
        embeds = torch.cat([part.embeds for part in parts])
        return cls(embeds, torch.cat(pooled) if pooled else None)
