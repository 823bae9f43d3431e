"""SynGen: a modifier shall be attended to where its noun is, and where no other word is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.generation.gradient_methods import LatentOptimization
from pixalign.generation.plan import EntityColumns, GenerationPlan
from pixalign.text.entities import Entity
from pixalign.text.prompts import Prompt

_LEAST = 1e-12  # attention of a position whose own is zero, for the logarithm


class SynGen(LatentOptimization):
    """The latents move so that modifiers and nouns share their attention.

    The loss of an entity with modifiers is the mean divergence between its noun and each of them,
    minus that between all of its words and the prompt's other tokens; a picture's is their sum.
    """

    name = "syngen"
    needs = "an entity with attributes"

    @classmethod
    def helps(cls, entities: Sequence[Entity]) -> bool:
        """Whether there is anything to bind."""
        return any(entity.modifiers for entity in entities)

    def __init__(self, plan: GenerationPlan) -> None:
        super().__init__(plan)
        backbone, length = plan.backbone, plan.texts.embeds.shape[1]
        self.words: dict[int, tuple[int, ...]] = {}  # the columns of a prompt's characters
        for picture in self.pictures:
            text = plan.requests[picture].prompt
            whole = Prompt(text, (0,), (((0, len(text)),),))
            (self.words[picture],) = backbone.columns(whole, length)

    @classmethod
    def measures(cls, columns: EntityColumns) -> bool:
        """Whether the entity has modifiers."""
        return bool(columns.modifiers)

    def losses(self, picture: int, maps: Tensor) -> Tensor:
        """[N'] of the entities with modifiers, from maps [L, h, w]."""
        losses = []
        for entity in self.measured[picture]:
            columns = self.plan.columns[picture][entity]
            words = distributions(maps, [columns.head, *columns.modifiers])
            loss = divergences(words[:1], words[1:]).mean()
            others = [(column,) for column in self.words[picture] if column not in columns.words]
            if others:
                loss = loss - divergences(words, distributions(maps, others)).mean()
            losses.append(loss)
        return torch.stack(losses)

    def total(self, losses: Tensor) -> Tensor:
        """The sum of the losses."""
        return losses.sum()


def distributions(maps: Tensor, words: Sequence[Sequence[int]]) -> Tensor:
    """[W, h*w] with sums of 1: each word's mean over its columns of maps [L, h, w]."""
    means = torch.stack([maps[list(columns)].mean(0).flatten() for columns in words])
    means = means.clamp_min(_LEAST)
    return means / means.sum(1, keepdim=True)


def divergences(first: Tensor, second: Tensor) -> Tensor:
    """[A, B]: (KL(p || q) + KL(q || p)) / 2 of distributions p [A, P] and q [B, P]."""
    apart = first[:, None] - second[None]
    return (apart * (first.log()[:, None] - second.log()[None])).sum(2) / 2
