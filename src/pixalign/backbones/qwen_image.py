"""Qwen-Image: double streams, a vision-language model's text behind a template, a video's VAE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.transformer import FlowTransformer
from pixalign.backbones.video import FrameCodec
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream


class QwenImage(FrameCodec, FlowTransformer):
    """Qwen-Image."""

    family = "qwen-image"
    description = "Qwen-Image (joint attention, flow, Qwen2.5-VL)"
    examples = ("Qwen/Qwen-Image",)
    transformer = "QwenImageTransformer2DModel"
    guidance = 4.0

    @property
    def latent_channels(self) -> int:
        return int(self.pipe.vae.config.z_dim)

    def _streams(self) -> tuple[TextStream, ...]:
        pipe = self.pipe
        before, after = pipe.prompt_template_encode.split("{}")
        dropped, limit = pipe.prompt_template_encode_start_idx, pipe.tokenizer_max_length
        stream = TextStream("llm", pipe.tokenizer, 0, limit, before=before, after=after)
        return (replace(stream, dropped=dropped),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, mask = self.pipe.encode_prompt(prompts, self.device)
        there = torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        return TextCondition(embeds, mask=there if mask is None else mask.bool())

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        height, width = (side // self.patch for side in z.shape[-2:])
        assert text.mask is not None
        return {
            "hidden_states": self.pack(z),
            "timestep": time / 1000,
            "encoder_hidden_states": text.embeds,
            "encoder_hidden_states_mask": None if bool(text.mask.all()) else text.mask,
            "img_shapes": [[(1, height, width)]] * len(z),
            "guidance": self.guidance_told(text),
        }

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        ((_, rows, columns),) = named["img_shapes"][0]
        return self.patch * rows, self.patch * columns
