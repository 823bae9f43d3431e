"""Stable Diffusion 3 and 3.5: joint attention over image and text, flow matching."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pixalign.attention import Site
from pixalign.backbones.transformer import FlowTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream

_T5_LENGTH = 256  # what diffusers' pipeline reads unless told otherwise


class StableDiffusion3(FlowTransformer):
    """SD3 and SD3.5, with or without the T5 encoder."""

    family = "sd3"
    description = "Stable Diffusion 3 and 3.5 (joint attention, flow; T5 optional)"
    examples = (
        "stabilityai/stable-diffusion-3-medium-diffusers",
        "stabilityai/stable-diffusion-3.5-medium",
    )
    arguments = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    transformer = "SD3Transformer2DModel"
    packed = False
    guidance = 7.0

    @property
    def largest_side(self) -> int:
        return int(self.denoiser.config.pos_embed_max_size) * self.size_multiple

    def sigmas(self, steps: int) -> None:
        """Those of the schedule."""

    def order(self, latent: Size, text: int) -> None:
        """The picture's tokens come first."""

    def _streams(self) -> tuple[TextStream, ...]:
        pipe = self.pipe
        clip = pipe.tokenizer_max_length
        streams = [TextStream("clip", t, 0, clip) for t in (pipe.tokenizer, pipe.tokenizer_2)]
        if pipe.tokenizer_3 is not None:
            there = pipe.text_encoder_3 is not None
            streams.append(TextStream("t5", pipe.tokenizer_3, clip, _T5_LENGTH, there))
        return tuple(streams)

    def _sites(self) -> tuple[Site, ...]:
        sites = []
        for block in self.denoiser.transformer_blocks:
            sites.append(Site(block.attn, "joint", "joint", self.patch))
            if block.attn2 is not None:
                sites.append(Site(block.attn2, "self", "joint", self.patch))
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
