"""ELBO-T2IAlign: attention, calibrated by each class's diffusion loss (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.alignment.collect import attention_maps, images_at_once
from pixalign.alignment.heatmaps import combined_layers, refined_maps, to_image
from pixalign.alignment.plan import plan_timesteps
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.config import AlignConfig
from pixalign.core.values import AttentionMaps
from pixalign.methods.base import Generators, Method, Timesteps


class Elbo(Method):
    """The paper's method: A <- minmax(A) ** (1 / S), refined by self-attention and enlarged.

    All its settings are the config's: timesteps, layers, strength (see `AlignConfig`).
    """

    name = "elbo"
    separable = True
    calibrations = ("elbo",)

    def collect_count(self, config: AlignConfig) -> int:
        """As the config says."""
        return config.collect_count

    def timesteps(self, latents: Tensor, config: AlignConfig, generators: Generators) -> Timesteps:
        """Both from one generator: collecting first."""
        return plan_timesteps(self.backbone.schedule, latents, config, generators())

    def images_together(self, latents: Tensor, config: AlignConfig) -> int:
        """As many as their self-attention leaves room for."""
        return images_at_once(self.backbone, latents, config.self_attention)

    def collect(self, tasks: Sequence[AlignmentTask]) -> list[AttentionMaps]:
        """Lines 1, 2 and 5: the attention of all pictures together."""
        return attention_maps(
            self.backbone,
            torch.cat([task.encoded.latents for task in tasks]),
            [task.plan for task in tasks],
            [task.noised for task in tasks],
            tasks[0].config,
            self.model.batch_size,
            self.progress,
        )

    def heatmaps(
        self, tasks: Sequence[AlignmentTask], collected: Sequence[AttentionMaps]
    ) -> list[MethodOutput]:
        """Lines 6 to 9: combine the layers, calibrate, refine, enlarge."""
        outputs = []
        for task, maps in zip(tasks, collected, strict=True):
            combined = combined_layers(maps, task.config, task.evidence)
            powers = torch.ones(len(combined)) if task.powers is None else task.powers
            refined = refined_maps(maps, combined, powers[None])
            heatmaps = to_image(refined, task.size)
            outputs.append(MethodOutput(heatmaps, combined, grid=maps.grid))
        return outputs
