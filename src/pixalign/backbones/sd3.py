"""Stable Diffusion 3 and 3.5: joint attention over image and text, flow matching."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pixalign.attention import Site
from pixalign.backbones.base import Backbone
from pixalign.core.values import TextCondition
from pixalign.diffusion.schedule import FlowSchedule, Schedule
from pixalign.text.streams import TextStream

_T5_LENGTH = 256  # what diffusers' pipeline reads unless told otherwise


class StableDiffusion3(Backbone):
    """SD3 and SD3.5, with or without the T5 encoder."""

    family = "sd3"
    description = "Stable Diffusion 3 and 3.5 (joint attention, flow; T5 optional)"
    examples = (
        "stabilityai/stable-diffusion-3-medium-diffusers",
        "stabilityai/stable-diffusion-3.5-medium",
    )
    network = "transformer"
    arguments = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    objective = "flow"
    half_dtype = torch.bfloat16
    guidance = 7.0

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """SD3's transformer, reading two CLIP text encoders and perhaps T5."""
        return (
            components.get("transformer") == "SD3Transformer2DModel"
            and {"tokenizer", "tokenizer_2"} <= components.keys()
        )

    @property
    def size_multiple(self) -> int:
        return self.vae_factor * int(self.pipe.transformer.config.patch_size)

    @property
    def largest_side(self) -> int:
        return int(self.pipe.transformer.config.pos_embed_max_size) * self.size_multiple

    @cached_property
    def schedule(self) -> Schedule:
        config = self.pipe.scheduler.config
        shift = config.get("shift") or config.get("flow_shift") or 1.0
        return FlowSchedule(shift, config.num_train_timesteps)

    def _streams(self) -> tuple[TextStream, ...]:
        pipe = self.pipe
        clip = pipe.tokenizer_max_length
        streams = [TextStream("clip", t, 0, clip) for t in (pipe.tokenizer, pipe.tokenizer_2)]
        if pipe.tokenizer_3 is not None:
            there = pipe.text_encoder_3 is not None
            streams.append(TextStream("t5", pipe.tokenizer_3, clip, _T5_LENGTH, there))
        return tuple(streams)

    def _sites(self) -> tuple[Site, ...]:
        patch = int(self.denoiser.config.patch_size)
        sites = []
        for block in self.denoiser.transformer_blocks:
            sites.append(Site(block.attn, "joint", "joint", patch))
            if block.attn2 is not None:
                sites.append(Site(block.attn2, "self", "joint", patch))
        return tuple(sites)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"do_classifier_free_guidance": False, "max_sequence_length": _T5_LENGTH}
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompts, None, None, device=self.device, **how
        )
        return TextCondition(embeds, pooled)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        return {
            "hidden_states": z,
            "timestep": time.float(),
            "encoder_hidden_states": text.embeds,
            "pooled_projections": text.pooled,
        }
