"""Plain sampling, in which all methods act, and the paper's: scores reweight the prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores
from pixalign.backbones import Backbone
from pixalign.core.values import TextCondition
from pixalign.diffusion.objectives import OBJECTIVES
from pixalign.diffusion.sampling import guided
from pixalign.generation.plan import EntityColumns, GenerationPlan
from pixalign.text.entities import Entity
from pixalign.text.weighting import weighted


class GenerationMethod:
    """Deterministic sampling with classifier-free guidance: "plain", until a method acts in it.

    It may move the latents before a step (`before`), or choose another output (`output`).
    ``weights`` and ``errors`` float32 [T, N], one tensor a picture, are what a method leaves of
    its entities: 1 and NaN where it did nothing.
    """

    name: ClassVar[str] = "plain"
    needs: ClassVar[str] = ""  # of a prompt, to do anything: "two entities"
    least: ClassVar[int] = 0  # so many that it measures

    def __init__(self, plan: GenerationPlan) -> None:
        self.plan, self.sampler = plan, plan.sampler
        shapes = [(plan.settings.steps, len(columns)) for columns in plan.columns]
        self.weights = [torch.ones(shape) for shape in shapes]
        self.errors = [torch.full(shape, torch.nan) for shape in shapes]

    @classmethod
    def measures(cls, entity: Entity | EntityColumns) -> bool:
        """Whether the entity counts for the method."""
        return True

    @classmethod
    def helps(cls, entities: Sequence[Entity]) -> bool:
        """Whether a prompt with these entities has what the method needs."""
        return sum(map(cls.measures, entities)) >= cls.least

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        """Refuse families that the method does not know."""

    def before(self, index: int, z: Tensor) -> Tensor:
        """The latents [B, C, h, w] with which the step begins."""
        return z

    def output(self, index: int, z: Tensor) -> Tensor:
        """The guided output for latents [B, C, h, w]."""
        return self.sampler.guided(index, z)


class Elbo(GenerationMethod):
    """The paper's: entities whose own prompt explains the step least weigh more in it.

    At each step e_i is the mean squared difference between the noise estimates of the whole prompt
    and of entity i alone, S = gamma ** minmax(e), and the weight 1 / S, rounded to hundredths.
    The empty prompt, the whole one and all entities go through the network in one batch, the
    reweighted prompt after them: (3 + N) / 2 times the passes of plain sampling for N entities.
    """

    name = "elbo"
    needs, least = "two entities", 2  # there is nothing to balance in one

    def __init__(self, plan: GenerationPlan) -> None:
        super().__init__(plan)
        compared = [
            (picture, entity.text)
            for picture, request in enumerate(plan.requests)
            for entity in request.entities
            if self.helps(request.entities)
        ]
        self.owners = torch.tensor([picture for picture, _ in compared], dtype=torch.long)
        if compared:
            alone = list(dict.fromkeys(text for _, text in compared))
            rows = torch.tensor([alone.index(text) for _, text in compared])
            texts = plan.backbone.encode_text(alone)[rows.to(plan.noise.device)]
            self.entity_texts = plan.backbone.told(texts, plan.settings.guidance)
            self.blank = plan.backbone.blank(plan.texts.embeds.shape[1])

    def output(self, index: int, z: Tensor) -> Tensor:
        """The guided output, with the reweighted prompt where the method acts."""
        plan = self.plan
        if not len(self.owners) or not plan.settings.acts(index):
            return super().output(index, z)
        owners = self.owners.to(z.device)
        texts = [self.sampler.nothing(len(z)), plan.texts, self.entity_texts]
        latents = torch.cat([z, z, z[owners]])
        said = self.sampler.output(index, latents, TextCondition.concatenate(texts))
        empty, full, alone = torch.split(said, [len(z), len(z), len(owners)])
        weights = self._weights(index, self._differences(index, full, alone))
        rows = (weights > 1).any(1).nonzero()[:, 0].to(z.device)
        if len(rows):
            whole = plan.texts[rows]
            embeds = weighted(whole.embeds, self.blank, weights[rows.cpu()])
            changed = dataclasses.replace(whole, embeds=embeds)
            if plan.settings.released and whole.pooled is not None:
                annotated = [self._annotated(picture, index) for picture in rows.tolist()]
                pooled = plan.backbone.encode_text(annotated).pooled
                changed = dataclasses.replace(changed, pooled=pooled)
            heavy = self.sampler.output(index, z[rows], changed)
            full = full.index_copy(0, rows, heavy)
        return guided(full, empty, self.sampler.guidance)

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The weights [N] of a picture's entities at a step, from their differences [N]."""
        return entity_weights(errors, self.plan.settings.strength)

    def _annotated(self, picture: int, index: int) -> str:
        """A picture's prompt with its entities' weights at a step, "(a red car)1.2"."""
        request, weights = self.plan.requests[picture], self.weights[picture][index].tolist()
        text = request.prompt
        spans = [entity.span for entity in request.entities]
        for (start, end), weight in sorted(zip(spans, weights, strict=True), reverse=True):
            text = f"{text[:start]}({text[start:end]}){weight:g}{text[end:]}"
        return text

    def _differences(self, index: int, full: Tensor, alone: Tensor) -> Tensor:
        """[E] on the CPU: how far each entity's noise estimate lies from its whole prompt's.

        Both are of the same latents, and an estimate is linear in output and latents, so the
        latents cancel.
        """
        apart = alone - full[self.owners.to(full.device)]
        steps = self.sampler.path.at(index, len(apart))
        objective = OBJECTIVES[self.plan.backbone.objective]
        noise = objective.to_epsilon(apart, torch.zeros_like(apart), steps)
        return noise.square().mean((1, 2, 3)).cpu()

    def _weights(self, index: int, differences: Tensor) -> Tensor:
        """[B, L] on the CPU: the weight of every text column, by the differences [E]."""
        by_column = torch.ones(self.plan.texts.embeds.shape[:2])
        for picture in sorted(set(self.owners.tolist())):
            errors = differences[self.owners == picture]
            weights = self.weigh(errors, picture, index)
            self.errors[picture][index], self.weights[picture][index] = errors, weights
            for columns, weight in zip(self.plan.columns[picture], weights.tolist(), strict=True):
                by_column[picture, list(columns.words)] = weight
        return by_column


def entity_weights(differences: Tensor, strength: float) -> Tensor:
    """float32 [N] in [1, strength], in hundredths: 1 / S with S = gamma ** minmax(e) (Eq. 5).

    Equal differences, and a single one, give 1.
    """
    scores = alignment_scores(differences, 1 / strength)
    return (1 / scores).mul(100).round() / 100
