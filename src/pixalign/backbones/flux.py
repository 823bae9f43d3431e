"""FLUX.1 and its relatives: double and single streams, rotary positions, packed latents, T5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pixalign.backbones.transformer import JOINT, FlowTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream

T5_LENGTH = 512  # what the pipelines read unless told otherwise


class Flux(FlowTransformer):
    """FLUX.1 dev, which is told its guidance, and schnell."""

    family = "flux"
    description = "FLUX.1 dev and schnell (joint attention, flow, T5)"
    examples: ClassVar[tuple[str, ...]] = (
        "black-forest-labs/FLUX.1-dev",
        "black-forest-labs/FLUX.1-schnell",
    )
    transformer = "FluxTransformer2DModel"
    layers = {"transformer_blocks": JOINT, "single_transformer_blocks": JOINT}  # noqa: RUF012
    tokenizer: ClassVar[str] = "tokenizer_2"
    guidance = 3.5

    def _streams(self) -> tuple[TextStream, ...]:
        tokenizer = getattr(self.pipe, self.tokenizer)
        return (TextStream("t5", tokenizer, 0, min(T5_LENGTH, tokenizer.model_max_length)),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"device": self.device, "max_sequence_length": self.streams[0].limit}
        embeds, pooled, _ = self.pipe.encode_prompt(prompts, **how)
        return self.told(TextCondition(embeds, pooled), 1.0)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        height, width = (side // self.patch for side in z.shape[-2:])
        place = self.pipe._prepare_latent_image_ids
        return {
            "hidden_states": self.pack(z),
            "timestep": time / 1000,
            "encoder_hidden_states": text.embeds,
            "txt_ids": z.new_zeros(text.embeds.shape[1], 3),
            "img_ids": place(len(z), height, width, z.device, z.dtype),
            **self._further_inputs(z, text),
        }

    def _further_inputs(self, z: Tensor, text: TextCondition) -> dict[str, Any]:
        return {"pooled_projections": text.pooled, "guidance": self.guidance_told(text)}

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        rows, columns = (int(side) for side in named["img_ids"][..., -2:].flatten(0, -2).amax(0))
        return self.patch * (rows + 1), self.patch * (columns + 1)


class Chroma(Flux):
    """Chroma: FLUX.1 without CLIP, its text masked."""

    family = "chroma"
    description = "Chroma (FLUX.1's streams, T5 alone, masked)"
    examples = ("lodestones/Chroma1-HD",)
    transformer = "ChromaTransformer2DModel"
    tokenizer = "tokenizer"
    guidance = 5.0

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, _, mask, *_ = self.pipe.encode_prompt(
            prompts, device=self.device, do_classifier_free_guidance=False
        )
        return TextCondition(embeds, extra={"weights": mask})

    def _further_inputs(self, z: Tensor, text: TextCondition) -> dict[str, Any]:
        """The mask is added to the logits as it is: 1 for what is read, 0 for the rest."""
        rows, columns = (side // self.patch for side in z.shape[-2:])
        mask = text.extra["weights"]
        return {"attention_mask": torch.cat([mask, mask.new_ones(len(z), rows * columns)], 1)}
