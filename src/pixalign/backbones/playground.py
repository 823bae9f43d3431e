"""Playground 2.5: Stable Diffusion XL with EDM's noise levels, inputs and outputs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor

from pixalign.backbones.sdxl import StableDiffusionXL
from pixalign.core.checks import check_choice
from pixalign.diffusion.schedule import DiscreteSchedule

_SIGN = {"epsilon": -1.0, "v_prediction": 1.0}  # of the velocity that the network estimates


class Playground(StableDiffusionXL):
    """Playground 2.5 (EDM: Karras et al., 2022).

    Latents x of spread d are noised as x + s n. What the network is shown, that divided by the root
    of s^2 + d^2, is alpha (x / d) + sigma n with alpha^2 + sigma^2 = 1. So latents here are x / d,
    s is d sigma / alpha, and the output is their velocity or its opposite. The network is told
    ln(s) / 4.
    """

    family = "playground"
    description = "Playground 2.5 (as SDXL, EDM's noise levels; velocity)"
    examples = ("playgroundai/playground-v2.5-1024px-aesthetic",)
    edm = True
    guidance = 3.0

    @property
    def spread(self) -> float:
        """EDM's d: the standard deviation of the pipeline's own latents."""
        return float(self.pipe.scheduler.config.sigma_data)

    @property
    def sign(self) -> float:
        """1 where the network estimates the velocity, -1 where it does its opposite."""
        kind = self.pipe.scheduler.config.prediction_type
        check_choice("prediction_type", kind, tuple(_SIGN))
        return _SIGN[kind]

    @cached_property
    def objective(self) -> str:
        return "velocity"

    @cached_property
    def schedule(self) -> DiscreteSchedule:
        """The table of noise levels with which the pipeline's scheduler begins."""
        scheduler = self.pipe.scheduler
        table = type(scheduler).from_config(scheduler.config).sigmas  # noisiest first, then 0
        levels = table[:-1].flip(0).double().cpu()
        signal = self.spread**2 / (levels**2 + self.spread**2)
        return DiscreteSchedule(signal, levels.log() / 4)

    def _latent_statistics(self, vae: Any) -> tuple[Tensor, Tensor]:
        shift, factor = super()._latent_statistics(vae)
        return shift, factor / self.spread

    def _output(self, output: Any, z: Tensor) -> Tensor:
        return self.sign * super()._output(output, z)
