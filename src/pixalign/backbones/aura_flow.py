"""AuraFlow: double and single streams behind learned registers, flow matching, a T5."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pixalign.backbones.transformer import JOINT, FlowTransformer, padding_before
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream

LENGTH = 256  # what the pipeline reads unless told otherwise
NATIVE = 1024  # pixels of a side; the configuration's sample_size is half of it


class AuraFlow(FlowTransformer):
    """AuraFlow, and Pony V7 that is made from it."""

    family = "aura-flow"
    description = "AuraFlow (joint attention, flow, T5 to 256 tokens)"
    examples: ClassVar[tuple[str, ...]] = ("fal/AuraFlow", "fal/AuraFlow-v0.3")
    arguments = ("hidden_states", "encoder_hidden_states", "timestep")
    transformer = "AuraFlowTransformer2DModel"
    layers = {"joint_transformer_blocks": JOINT, "single_transformer_blocks": JOINT}  # noqa: RUF012
    packed = False
    half_dtype = torch.float16
    guidance = 3.5

    @property
    def largest_side(self) -> int:
        return math.isqrt(self.denoiser.config.pos_embed_max_size) * self.size_multiple

    @property
    def native_size(self) -> Size:
        side = min(NATIVE, self.largest_side)
        return side, side

    def sigmas(self, steps: int) -> None:
        """Those of the schedule."""

    def order(self, latent: Size, text: int) -> Tensor:
        """The registers, which stand for nothing, then the text's tokens and the picture's."""
        registers = self.denoiser.register_tokens.shape[1]
        places = torch.arange(registers + text + self.tokens(latent))
        first, words, picture = places.tensor_split((registers, registers + text))
        return torch.cat([picture, words, first])

    def _streams(self) -> tuple[TextStream, ...]:
        tokenizer = self.pipe.tokenizer
        return (TextStream("t5", tokenizer, 0, LENGTH, lead=padding_before(tokenizer, LENGTH)),)

    def call_streams(self, length: int) -> tuple[TextStream, ...]:
        """Texts are padded to as many tokens as the call reads."""
        (stream,) = self.streams
        return (replace(stream, lead=padding_before(stream.tokenizer, length)),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"do_classifier_free_guidance": False, "device": self.device}
        embeds, *_ = self.pipe.encode_prompt(prompts, **how)
        return TextCondition(embeds)  # padding is zeros there, which the network is shown too

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        return {
            "hidden_states": z,
            "encoder_hidden_states": text.embeds,
            "timestep": (time / 1000).to(z.dtype),  # the pipeline rounds it so
        }
