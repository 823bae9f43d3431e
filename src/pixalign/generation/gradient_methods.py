"""Latents that move down the slope of a loss of the attention maps: what the baselines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.attention import AttentionReader, Site, run_until
from pixalign.attention.sites import grid_factor
from pixalign.backbones import Backbone
from pixalign.backbones.gradients import gradients_to_inputs
from pixalign.core.values import TextCondition
from pixalign.diffusion.schedule import Steps
from pixalign.generation.methods import GenerationMethod
from pixalign.generation.plan import EntityColumns, GenerationPlan
from pixalign.text.entities import Entity

STEP = 20.0  # by which the published methods multiply the gradient


class LatentOptimization(GenerationMethod, ABC):
    """In the first half of the steps, the latents move against the gradient of a loss.

    The loss is one of the conditional prompt's attention maps. ``measured[b]`` are the entities of
    picture b that have one, ``pictures`` those with such an entity; the others are left alone.
    ``errors`` keep the entities' losses before the step's move.
    """

    needs = "an entity"

    @classmethod
    def helps(cls, entities: Sequence[Entity]) -> bool:
        """Whether there is anything to attend to."""
        return bool(entities)

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

    @classmethod
    def measures(cls, columns: EntityColumns) -> bool:
        """Whether an entity of those columns has a loss."""
        return True

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
        if not bool(torch.isfinite(gradients).all()):
            raise FloatingPointError(
                f"the gradient of {self.name} is NaN or infinite in {self.plan.backbone.dtype}; "
                "load the model with dtype='float32' or 'bfloat16'"
            )
        return gradients

    def _slopes(self, index: int, z: Tensor, pictures: Sequence[int]) -> Tensor:
        plan, rows = self.plan, torch.tensor(pictures, device=z.device)
        with gradients_to_inputs(plan.backbone.denoiser, checkpointing=False):
            latents = z[rows].clone().requires_grad_(True)
            steps, text = self.sampler.path.at(index, len(rows)), plan.texts[rows]
            maps = differentiable_maps(plan.backbone, latents, steps, text, self.sites)
            losses = [
                self.losses(picture, read)
                for picture, read in zip(pictures, maps.unbind(), strict=True)
            ]
            # No picture's loss knows another's latents, so the sum's gradient is that of each.
            total = torch.stack([self.total(each) for each in losses]).sum()
            (slopes,) = torch.autograd.grad(total, latents)
        noted = torch.split(torch.cat(losses).detach().cpu(), [len(each) for each in losses])
        for picture, errors in zip(pictures, noted, strict=True):
            self.errors[picture][index, self.measured[picture]] = errors
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

    The pass ends at the last of the sites, which stand in the order in which they run.
    """
    reader = AttentionReader(sites)
    reader.columns = torch.eye(text.embeds.shape[1], device=z.device).expand(len(z), -1, -1)
    with reader.attached(backbone.denoiser):
        run_until(sites[-1].module, lambda: backbone.output(z, steps, text))
    return torch.stack([reader.cross[site] for site in sites]).mean(0)
