"""ELBO-T2IAlign: attention, calibrated by each class's diffusion loss (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.alignment.collect import images_at_once
from pixalign.alignment.heatmaps import refined_maps, to_image
from pixalign.alignment.plan import NoisedTimesteps, plan_timesteps
from pixalign.alignment.scoring import attention_maps
from pixalign.attention.layers import combine_layers
from pixalign.config import AlignConfig
from pixalign.core.progress import Progress
from pixalign.methods.base import Generators, Method, Timesteps
from pixalign.methods.task import AlignmentTask, MethodOutput


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

    def heatmaps(
        self,
        tasks: Sequence[AlignmentTask],
        timesteps: Sequence[NoisedTimesteps],
        progress: Progress,
    ) -> list[MethodOutput]:
        """Lines 5 to 9: collect, combine the layers, calibrate, refine, enlarge."""
        config = tasks[0].config
        latents = torch.cat([task.encoded.latents for task in tasks])
        collected = attention_maps(
            self.backbone,
            latents,
            [task.plan for task in tasks],
            timesteps,
            config,
            self.model.batch_size,
            progress,
        )
        assert config.cross_weights is not None, "the config must be resolved"
        outputs = []
        for task, maps in zip(tasks, collected, strict=True):
            combined = combine_layers(maps.cross, maps.layers, config.cross_weights)
            powers = torch.ones(len(combined)) if task.powers is None else task.powers
            refined = refined_maps(maps, combined, powers[None])
            outputs.append(MethodOutput(to_image(refined, task.size), combined))
        return outputs
