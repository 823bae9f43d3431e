"""What transformers over tokens of picture and text share: flow matching, packing, their order."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from pixalign.attention import Site
from pixalign.attention.sites import Kind
from pixalign.backbones.base import Backbone
from pixalign.core.values import Size
from pixalign.diffusion.schedule import FlowSchedule, SamplingPath, Schedule, check_count
from pixalign.text.streams import around_prompt


def chat(tokenizer: Any, **options: Any) -> tuple[str, str]:
    """What a tokenizer's chat template puts before and after a user's message."""

    def template(prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        said: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return said

    return around_prompt(template)


def padding_before(tokenizer: Any, length: int) -> Callable[[int], int]:
    """How many padding tokens stand before so many others, where texts are padded to a length."""
    left = tokenizer.padding_side == "left"
    return lambda tokens: max(0, length - tokens) if left else 0


JOINT: Mapping[str, Kind] = {"attn": "joint"}
CROSS: Mapping[str, Kind] = {"attn1": "self", "attn2": "cross"}


class Transformer(Backbone):
    """A transformer over tokens of the picture.

    A family says which class its ``transformer`` is; in which lists of blocks attention stands,
    what the layers are called there, and of which kind they are (``layers``); how many latent
    positions a token's side has (``patch``).
    """

    network = "transformer"
    transformer: ClassVar[str]
    layers: ClassVar[Mapping[str, Mapping[str, Kind]]] = {"transformer_blocks": JOINT}
    patch: int = 2

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """A transformer of that class."""
        return components.get("transformer") == cls.transformer

    @property
    def size_multiple(self) -> int:
        return self.vae_factor * self.patch

    def tokens(self, latent: Size) -> int:
        """How many tokens a latent of that (height, width) has."""
        return math.prod(-(-side // self.patch) for side in latent)

    def _sites(self) -> tuple[Site, ...]:
        return tuple(
            Site(getattr(block, name), kind, "joint", self.patch)
            for blocks, kinds in self.layers.items()
            for block in getattr(self.denoiser, blocks)
            for name, kind in kinds.items()
        )

    def order(self, latent: Size, text: int) -> Tensor | None:
        """Where picture and text are read at once, the text's tokens stand before the picture's."""
        if not any(site.kind == "joint" for site in self.sites):
            return None
        return torch.arange(self.tokens(latent) + text).roll(-text)


class FlowTransformer(Transformer):
    """A transformer trained on the straight path from picture to noise.

    A family also says whether the network takes tokens (``packed``) or latents.
    """

    objective = "flow"
    half_dtype = torch.bfloat16
    packed: ClassVar[bool] = True

    @property
    def input_channels(self) -> int:
        return int(self.denoiser.config.in_channels) // (self.patch**2 if self.packed else 1)

    @cached_property
    def schedule(self) -> Schedule:
        config = self.pipe.scheduler.config
        shift = config.get("shift") or config.get("flow_shift") or 1.0
        return FlowSchedule(shift, config.num_train_timesteps)

    def path(self, steps: int, latent: Size) -> SamplingPath:
        """The pipeline's own: evenly spaced, shifted as its scheduler does for so many tokens."""
        sigmas, schedule = self.sigmas(steps), self.schedule
        if sigmas is None:
            return schedule.path(steps)
        assert isinstance(schedule, FlowSchedule)
        check_count(steps, schedule.length)
        scheduler = copy.copy(self.pipe.scheduler)
        scheduler.set_timesteps(sigmas=sigmas, mu=self.shift(latent, steps))
        return schedule.along(scheduler.sigmas.double().cpu())

    def scheduled(self, steps: int, **options: Any) -> SamplingPath:
        """The scheduler's own, which may tell the network a time that is rounded."""
        schedule, scheduler = self.schedule, copy.copy(self.pipe.scheduler)
        assert isinstance(schedule, FlowSchedule)
        check_count(steps, schedule.length)
        scheduler.set_timesteps(steps, **options)
        path = schedule.along(scheduler.sigmas.double().cpu())
        return replace(path, steps=replace(path.steps, time=scheduler.timesteps.double().cpu()))

    def sigmas(self, steps: int) -> np.ndarray | None:
        """The noise levels [steps] before they are shifted; None are those of the schedule."""
        return np.linspace(1.0, 1 / max(1, steps), max(1, steps))

    def shift(self, latent: Size, steps: int) -> float | None:
        """The logarithm of their shift, where the number of the picture's tokens decides it."""
        if not self.pipe.scheduler.config.get("use_dynamic_shifting"):
            return None
        return self._shift_of(self.tokens(latent))

    def _shift_of(self, tokens: int) -> float:
        config = self.pipe.scheduler.config
        least, most = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
        return float(low + (high - low) / (most - least) * (tokens - least))

    def pack(self, latents: Tensor) -> Tensor:
        """Latents [B, C, h, w] as the network's tokens [B, h w / patch^2, C patch^2]."""
        return rearrange(latents, "b c (h p) (w q) -> b (h w) (c p q)", p=self.patch, q=self.patch)

    def unpack(self, tokens: Tensor, latent: Size) -> Tensor:
        """Tokens as latents [B, C, h, w] of that (height, width)."""
        rows, patch = latent[0] // self.patch, self.patch
        form = "b (h w) (c p q) -> b c (h p) (w q)"
        return rearrange(tokens, form, h=rows, p=patch, q=patch)

    def _output(self, output: Any, z: Tensor) -> Tensor:
        tensor = super()._output(output, z)
        return self.unpack(tensor, (z.shape[-2], z.shape[-1])) if self.packed else tensor
