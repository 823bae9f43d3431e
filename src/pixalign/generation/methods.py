"""Plain sampling, and the paper's: alignment scores reweight the prompt at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores
from pixalign.backbones import Backbone
from pixalign.core.values import TextCondition
from pixalign.diffusion.objectives import to_epsilon
from pixalign.diffusion.sampling import guided
from pixalign.generation.drawing import Drawing
from pixalign.text.entities import Entity
from pixalign.text.weighting import weighted


class Plain:
    """Deterministic sampling with classifier-free guidance; the base of all methods.

    A method may move the latents before a step (`before`), or choose another output (`output`).
    ``weights`` and ``errors`` float32 [T, N], one tensor a picture, are what a method leaves of
    its entities: 1 and NaN where it did nothing.
    """

    name: ClassVar[str] = "plain"
    reads_entities: ClassVar[bool] = False
    needs: ClassVar[str] = "nothing"  # of a prompt, to do anything

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        shapes = [(len(drawing.path), len(columns)) for columns in drawing.columns]
        self.weights = [torch.ones(shape) for shape in shapes]
        self.errors = [torch.full(shape, torch.nan) for shape in shapes]

    @classmethod
    def helps(cls, entities: Sequence[Entity]) -> bool:
        """Whether a prompt with these entities has what the method needs."""
        return True

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        """Refuse families that the method does not know."""

    def before(self, index: int, z: Tensor) -> Tensor:
        """The latents [B, C, h, w] with which the step begins."""
        return z

    def output(self, index: int, z: Tensor) -> Tensor:
        """The guided output for latents [B, C, h, w]: both texts in one batch."""
        drawing = self.drawing
        text = TextCondition.concatenate([drawing.empty.repeated(len(z)), drawing.texts])
        empty, full = drawing.ask(index, torch.cat([z, z]), text).chunk(2)
        return guided(full, empty, drawing.settings.guidance)


class Elbo(Plain):
    """The paper's: entities whose own prompt explains the step least weigh more in it.

    At each step e_i is the mean squared difference between the noise estimates of the whole prompt
    and of entity i alone, S = gamma ** minmax(e), and the weight 1 / S, rounded to hundredths.
    The empty prompt, the whole one and all entities go through the network in one batch, the
    reweighted prompt after them: (3 + N) / 2 times the passes of plain sampling for N entities.
    """

    name = "elbo"
    reads_entities = True
    needs = "two entities"

    @classmethod
    def helps(cls, entities: Sequence[Entity]) -> bool:
        """Whether there is anything to balance."""
        return len(entities) > 1

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(drawing)
        backbone = drawing.backbone
        several = [
            (picture, entity)
            for picture, wish in enumerate(drawing.wishes)
            for entity in wish.entities
            if self.helps(wish.entities)
        ]
        device = drawing.noise.device
        self.owners = torch.tensor([picture for picture, _ in several], dtype=torch.long)
        if several:
            alone = list(dict.fromkeys(entity.text for _, entity in several))
            place = [alone.index(entity.text) for _, entity in several]
            self.entity_texts = backbone.encode_text(alone)[torch.tensor(place, device=device)]
            self.blank = backbone.encode_text([""]).embeds[0]

    def output(self, index: int, z: Tensor) -> Tensor:
        """The guided output, with the reweighted prompt where the method acts."""
        drawing = self.drawing
        if not len(self.owners) or not drawing.settings.acts(index):
            return super().output(index, z)
        there = self.owners.to(z.device)
        text = [drawing.empty.repeated(len(z)), drawing.texts, self.entity_texts]
        latents = torch.cat([z, z, z[there]])
        found = drawing.ask(index, latents, TextCondition.concatenate(text))
        empty, full, alone = torch.split(found, [len(z), len(z), len(there)])
        weights = self._weights(index, self._differences(index, full, alone))
        rows = (weights > 1).any(1).nonzero()[:, 0].to(z.device)
        if len(rows):
            texts = drawing.texts[rows]
            embeds = weighted(texts.embeds, self.blank, weights[rows.cpu()])
            heavy = drawing.ask(index, z[rows], TextCondition(embeds, texts.pooled))
            full = full.index_copy(0, rows, heavy)
        return guided(full, empty, drawing.settings.guidance)

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The weights [N] of a picture's entities at a step, from their differences [N]."""
        return entity_weights(errors, self.drawing.settings.strength)

    def _differences(self, index: int, full: Tensor, alone: Tensor) -> Tensor:
        """[E] on the CPU: how far each entity's noise estimate lies from its whole prompt's.

        Both are of the same latents, and an estimate is linear in output and latents, so the
        latents cancel.
        """
        objective, path = self.drawing.backbone.objective, self.drawing.path
        apart = alone - full[self.owners.to(full.device)]
        steps = path.at(index, len(apart))
        noise = to_epsilon(objective, apart, torch.zeros_like(apart), steps)
        return noise.square().mean((1, 2, 3)).cpu()

    def _weights(self, index: int, differences: Tensor) -> Tensor:
        """[B, L] on the CPU: the weight of every text column, by the differences [E]."""
        drawing = self.drawing
        found = torch.ones(drawing.texts.embeds.shape[:2])
        for picture in sorted(set(self.owners.tolist())):
            errors = differences[self.owners == picture]
            weights = self.weigh(errors, picture, index)
            self.errors[picture][index], self.weights[picture][index] = errors, weights
            for columns, weight in zip(drawing.columns[picture], weights.tolist(), strict=True):
                found[picture, list(columns.words)] = weight
        return found


def entity_weights(differences: Tensor, strength: float) -> Tensor:
    """float32 [N] in [1, strength], in hundredths: 1 / S with S = gamma ** minmax(e) (Eq. 5).

    Equal differences, and a single one, give 1.
    """
    scores = alignment_scores(differences, 1 / strength)
    return (1 / scores).mul(100).round() / 100
