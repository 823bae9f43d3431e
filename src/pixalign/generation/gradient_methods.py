"""Latents that move down the slope of a loss of the attention maps: Attend-and-Excite, SynGen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.attention import AttentionReader, Site, run_through
from pixalign.attention.sites import grid_factor
from pixalign.backbones import Backbone
from pixalign.backbones.gradients import gradients_to_inputs
from pixalign.core.checks import check_finite
from pixalign.core.values import TextCondition
from pixalign.diffusion.schedule import Steps
from pixalign.generation.methods import GenerationMethod
from pixalign.generation.plan import EntityColumns, GenerationPlan
from pixalign.text.entities import Entity

STEP = 20.0  # by which the published methods multiply the gradient
TARGETS = {0: 0.05, 10: 0.5, 20: 0.8}  # attention that refinement is to reach, by step of 50
TRIES = 20  # moves of one refinement at most
_SHARPNESS = 100.0  # of the softmax over the tokens
_SIGMA = 0.5  # cells
_LEAST = 1e-12  # attention of a position whose own is zero, for the logarithm


class LatentOptimization(GenerationMethod, ABC):
    """In the first half of the steps, the latents move against the gradient of a loss.

    The loss is one of the conditional prompt's attention maps. ``measured[b]`` are the entities of
    picture b that have one, ``pictures`` those with such an entity; the others are left alone.
    ``errors`` keep the entities' losses before the step's move.
    """

    needs, least = "an entity", 1

    def __init__(self, plan: GenerationPlan) -> None:
        super().__init__(plan)
        self.sites = map_sites(plan.backbone)
        self.measured = [
            [number for number, entity in enumerate(entities) if self.measures(entity)]
            for entities in plan.columns
        ]
        self.pictures = [picture for picture, entities in enumerate(self.measured) if entities]

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        """Refuse families without cross-attention."""
        if not any(site.kind == "cross" for site in backbone.sites):
            raise ValueError(
                f"{cls.name} reads a UNet's cross-attention, which {backbone.family} has not; "
                "allowed families: sd, sdxl"
            )

    @abstractmethod
    def losses(self, picture: int, maps: Tensor) -> Tensor:
        """[N'] of a picture's measured entities, from its maps [L, h, w]."""

    @abstractmethod
    def total(self, losses: Tensor) -> Tensor:
        """The loss of a picture from those of its entities [N']."""

    def step_size(self, index: int) -> float:
        """By how much of the gradient the latents move at that step."""
        return STEP

    def refined(self, index: int, z: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Latents and slopes, both [B, C, h, w], with which the step's own move begins."""
        return z, slopes

    def before(self, index: int, z: Tensor) -> Tensor:
        """The latents [B, C, h, w] moved, where the method acts."""
        early = index < self.plan.settings.steps / 2
        if not (early and self.pictures and self.plan.settings.acts(index)):
            return z
        rows = torch.tensor(self.pictures, device=z.device)
        slopes = torch.zeros_like(z).index_copy(0, rows, self.slopes(index, z, self.pictures))
        z, slopes = self.refined(index, z, slopes)
        return z - self.step_size(index) * slopes

    def slopes(self, index: int, z: Tensor, pictures: Sequence[int]) -> Tensor:
        """The gradients [P, C, h, w] of those pictures' losses by their latents in z [B, C, h, w].

        In one batch or as few as memory allows; notes the entities' losses.
        """
        gradients = torch.empty_like(z[: len(pictures)])

        def work(first: int, last: int) -> None:
            gradients[first:last] = self._slopes(index, z, pictures[first:last])

        self.plan.batch_size.each(z, len(pictures), "gradient", work)
        check_finite(gradients, f"the gradients of {self.name}", self.plan.backbone.dtype)
        return gradients

    def _slopes(self, index: int, z: Tensor, pictures: Sequence[int]) -> Tensor:
        plan, rows = self.plan, torch.tensor(pictures, device=z.device)
        with gradients_to_inputs(plan.backbone.denoiser, checkpointing=False):
            latents = z[rows].clone().requires_grad_(True)
            steps, text = self.sampler.path.at(index, len(rows)), plan.texts[rows]
            maps = differentiable_maps(plan.backbone, latents, steps, text, self.sites)
            losses = [self.losses(picture, maps[row]) for row, picture in enumerate(pictures)]
            # No picture's loss knows another's latents, so the sum's gradient is that of each.
            total = torch.stack([self.total(each) for each in losses]).sum()
            (slopes,) = torch.autograd.grad(total, latents)
        for picture, each in zip(pictures, losses, strict=True):
            self.errors[picture][index, self.measured[picture]] = each.detach().cpu()
        return slopes


def map_sites(backbone: Backbone) -> tuple[Site, ...]:
    """The cross-attention layers of one grid: that nearest to 16 x 16 at the native size.

    Of the grids on the way down and up, as in the published methods: one that only the network's
    middle has does not count.
    """
    cross = [site for site in backbone.sites if site.kind == "cross"]
    side = min(backbone.latent_shape(backbone.native_size)[1:])
    factor = grid_factor([site for site in cross if site.place != "mid"], (side, side))
    return tuple(site for site in cross if site.factor == factor)


def differentiable_maps(
    backbone: Backbone, z: Tensor, steps: Steps, text: TextCondition, sites: Sequence[Site]
) -> Tensor:
    """Mean attention over heads and sites, float32 [B, L, h, w], with gradients to the latents z.

    The pass ends with the last of the sites, which stand in the order in which they run.
    """
    reader = AttentionReader(sites)
    reader.columns = torch.eye(text.embeds.shape[1], device=z.device).expand(len(z), -1, -1)
    with reader.attached(backbone):
        run_through(sites[-1].module, lambda: backbone.output(z, steps, text))
    return torch.stack([reader.cross[site] for site in sites]).mean(0)


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
        bound = 1 - self.targets.get(index, 0.0)  # which no loss is above without a target
        for _ in range(TRIES):
            above = [p for p in self.pictures if float(self.errors[p][index].max()) > bound]
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
    beside = math.exp(-((1 / (2 * _SIGMA)) ** 2))
    for axis in (1, 2):
        size = maps.shape[axis]
        wide = torch.cat([maps.narrow(axis, 1, 1), maps, maps.narrow(axis, size - 2, 1)], axis)
        before, here, after = (wide.narrow(axis, shift, size) for shift in range(3))
        maps = (here + beside * (before + after)) / (1 + 2 * beside)
    return maps


class SynGen(LatentOptimization):
    """The latents move so that modifiers and nouns share their attention.

    The loss of an entity with modifiers is the mean divergence between its noun and each of them,
    minus that between all of its words and the prompt's other tokens; a picture's is their sum.
    """

    name = "syngen"
    needs = "an entity with attributes"

    @classmethod
    def measures(cls, entity: Entity | EntityColumns) -> bool:
        """Whether there is anything to bind."""
        return bool(entity.modifiers)

    def __init__(self, plan: GenerationPlan) -> None:
        super().__init__(plan)
        self.words: dict[int, tuple[int, ...]] = {}  # the columns of a prompt's characters
        for picture in self.pictures:
            text = plan.requests[picture].prompt
            (self.words[picture],) = plan.columns_of(text, [(0, len(text))])

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
