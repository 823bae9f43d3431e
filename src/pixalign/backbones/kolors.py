"""Kolors: Stable Diffusion XL's UNet with the text of ChatGLM3, padded on the left."""

from __future__ import annotations

from collections.abc import Mapping

from pixalign.backbones.sdxl import StableDiffusionXL
from pixalign.backbones.transformer import padding_before
from pixalign.text.streams import TextStream

LENGTH = 256  # what the pipeline reads unless told otherwise


class Kolors(StableDiffusionXL):
    """Kolors. Its tokenizer needs sentencepiece."""

    family = "kolors"
    description = "Kolors (as SDXL, ChatGLM3)"
    examples = ("Kwai-Kolors/Kolors-diffusers",)

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """A UNet with that tokenizer."""
        parts = ("UNet2DConditionModel", "ChatGLMTokenizer")
        return (components.get("unet"), components.get("tokenizer")) == parts

    def _streams(self) -> tuple[TextStream, ...]:
        return self.call_streams(LENGTH)

    def call_streams(self, length: int) -> tuple[TextStream, ...]:
        tokenizer = self.pipe.tokenizer
        lead = padding_before(tokenizer, length)
        return (TextStream("llm", tokenizer, 0, length, lead=lead),)
