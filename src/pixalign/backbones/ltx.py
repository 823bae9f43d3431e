"""LTX-Video: a transformer of packed videos whose cross-attention reads T5, masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.transformer import CROSS
from pixalign.backbones.video import VideoTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream

LENGTH = 128  # what the pipeline reads unless told otherwise
_RATE = 25  # frames a second, unless told otherwise


class Ltx(VideoTransformer):
    """LTX-Video, whose decoder removes what noise is left."""

    family = "ltx"
    description = "LTX-Video (video; cross-attention, flow, T5)"
    examples = ("Lightricks/LTX-Video",)
    arguments = ("hidden_states", "encoder_hidden_states", "timestep")
    transformer = "LTXVideoTransformer3DModel"
    layers = {"transformer_blocks": CROSS}  # noqa: RUF012
    patch = 1
    packed = True
    guidance = 3.0
    native = (512, 704)

    @property
    def vae_factor(self) -> int:
        return int(self.pipe.vae_spatial_compression_ratio)

    def _streams(self) -> tuple[TextStream, ...]:
        return (TextStream("t5", self.pipe.tokenizer, 0, LENGTH),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, mask, *_ = self.pipe.encode_prompt(prompts, None, False, device=self.device)
        return TextCondition(embeds, mask=mask.bool())

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        pipe, side = self.pipe, self.vae_factor
        return {
            "hidden_states": self.pack(z),
            "encoder_hidden_states": text.embeds,
            "timestep": time,
            "encoder_attention_mask": text.mask,
            "num_frames": 1,
            "height": z.shape[-2],
            "width": z.shape[-1],
            "rope_interpolation_scale": (pipe.vae_temporal_compression_ratio / _RATE, side, side),
        }

    def call_frames(self, named: Mapping[str, Any]) -> int:
        return int(named["num_frames"])

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        return named["num_frames"] * named["height"], named["width"]

    def _latent_statistics(self, vae: Any) -> tuple[Tensor, Tensor]:
        mean, spread = (x.reshape(1, -1, 1, 1) for x in (vae.latents_mean, vae.latents_std))
        return mean, vae.config.scaling_factor / spread

    def _decoded(self, vae: Any, latents: Tensor) -> Tensor:
        if not vae.config.timestep_conditioning:
            return super()._decoded(vae, latents)
        clean = torch.zeros(len(latents), device=latents.device, dtype=latents.dtype)
        pixels: Tensor = vae.decode(latents[:, :, None], clean)[0][:, :, 0]
        return pixels
