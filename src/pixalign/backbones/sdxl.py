"""Stable Diffusion XL: a UNet, two CLIP text encoders, pooled text and picture sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.sd import StableDiffusion
from pixalign.core.values import TextCondition
from pixalign.text.streams import TextStream


class StableDiffusionXL(StableDiffusion):
    """SDXL base and its descendants."""

    family = "sdxl"
    description = "Stable Diffusion XL (UNet, two text encoders, added conditions)"
    examples = ("stabilityai/stable-diffusion-xl-base-1.0",)
    guidance = 5.0

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """A UNet that reads two CLIP text encoders (which may have been freed)."""
        return (
            components.get("unet") == "UNet2DConditionModel"
            and components.get("text_encoder", "CLIPTextModel") == "CLIPTextModel"
            and {"tokenizer", "tokenizer_2"} <= components.keys()
        )

    def _streams(self) -> tuple[TextStream, ...]:
        # The two encoders' features stand side by side in the same columns.
        tokenizers = (self.pipe.tokenizer, self.pipe.tokenizer_2)
        return tuple(TextStream("clip", t, 0, t.model_max_length) for t in tokenizers)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompts, device=self.device, do_classifier_free_guidance=False
        )
        return TextCondition(embeds, pooled)

    @torch.no_grad()
    def unconditional(self) -> TextCondition:
        empty = super().unconditional()
        if not self.pipe.config.force_zeros_for_empty_prompt:
            return empty
        assert empty.pooled is not None
        return TextCondition(torch.zeros_like(empty.embeds), torch.zeros_like(empty.pooled))

    def forward(self, network: Any, z: Tensor, time: Tensor, text: TextCondition) -> Tensor:
        height, width = (side * self.vae_factor for side in z.shape[-2:])
        ids = z.new_tensor([[height, width, 0, 0, height, width]]).expand(len(z), -1)
        output: Tensor = network(
            z,
            time.long(),
            encoder_hidden_states=text.embeds,
            added_cond_kwargs={"text_embeds": text.pooled, "time_ids": ids},
            return_dict=False,
        )[0]
        return output
