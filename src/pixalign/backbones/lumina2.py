"""Lumina-Image 2: one stream in which each row's picture stands right behind its own text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.transformer import JOINT, FlowTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream

LENGTH = 256  # what the pipeline reads unless told otherwise, its own words included
PROMPT_START = " <Prompt Start> "  # which the pipeline puts between its words and the prompt


class Lumina2(FlowTransformer):
    """Lumina-Image 2.0 and its finetunes."""

    family = "lumina2"
    description = "Lumina-Image 2 (one stream, flow, Gemma2 behind a system prompt)"
    examples = ("Alpha-VLLM/Lumina-Image-2.0",)
    arguments = ("hidden_states", "timestep", "encoder_hidden_states", "encoder_attention_mask")
    transformer = "Lumina2Transformer2DModel"
    layers = {"layers": JOINT}  # noqa: RUF012
    packed = False
    guidance = 4.0

    @property
    def largest_side(self) -> int:
        positions = int(min(self.denoiser.config.axes_lens[1:]))  # of a table that is looked up
        return min(super().largest_side, positions * self.size_multiple)

    @cached_property
    def system_prompt(self) -> str:
        """What stands before every prompt: the pipeline's own when it was loaded."""
        return str(self.pipe.system_prompt)

    def _streams(self) -> tuple[TextStream, ...]:
        before = self.system_prompt + PROMPT_START
        return (TextStream("llm", self.pipe.tokenizer, 0, LENGTH, before=before),)

    def check_encoding(self, prompts: Sequence[str], given: Mapping[str, Any]) -> None:
        said = given.get("system_prompt")
        said = self.pipe.system_prompt if said is None else said
        if said != self.system_prompt:
            raise ValueError(
                f"the system prompt is {said!r}; the columns of words are counted behind "
                f"{self.system_prompt!r}, which the pipeline had when it was loaded"
            )

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"device": self.device, "system_prompt": self.system_prompt}
        embeds, mask, _, _ = self.pipe.encode_prompt(prompts, False, **how)
        return TextCondition(embeds, mask=mask.bool())

    @torch.no_grad()
    def unconditional(self) -> TextCondition:
        """Nothing at all: the pipeline leads away from a text without its system prompt."""
        _, _, embeds, mask = self.pipe.encode_prompt([""], True, device=self.device)
        return TextCondition(embeds.to(self.dtype), mask=mask.bool())

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        return {
            "hidden_states": z,
            "timestep": 1 - time / self.schedule.length,
            "encoder_hidden_states": text.embeds,
            "encoder_attention_mask": text.mask,
        }

    def _output(self, output: Any, z: Tensor) -> Tensor:
        """The network estimates the way to the picture."""
        return -super()._output(output, z)

    def shift(self, latent: Size, steps: int) -> float | None:
        """The pipeline takes the number of channels for that of the picture's tokens."""
        return super().shift((self.patch, self.patch * self.latent_channels), steps)

    def call_order(self, named: Mapping[str, Any], latent: Size, texts: Sequence[Tensor]) -> Tensor:
        """Each row's text, its picture, and what the longest row has more."""
        lengths, image = named["encoder_attention_mask"].sum(1, keepdim=True), self.tokens(latent)
        places = torch.arange(image + int(lengths.max()), device=lengths.device)
        behind = torch.where(places < image + lengths, places - image, places)
        return torch.where(places < image, places + lengths, behind)
