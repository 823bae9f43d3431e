"""Stable Diffusion XL: a UNet, two CLIP text encoders, pooled text and picture sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pixalign.backbones.sd import StableDiffusion
from pixalign.core.values import TextCondition


class StableDiffusionXL(StableDiffusion):
    """SDXL base and its descendants."""

    family = "sdxl"
    description = "Stable Diffusion XL (UNet, two text encoders, added conditions)"
    examples: ClassVar[tuple[str, ...]] = (
        "stabilityai/stable-diffusion-xl-base-1.0",
        "stabilityai/sdxl-turbo",
        "segmind/SSD-1B",
    )
    guidance = 5.0
    tokenizers = ("tokenizer", "tokenizer_2")
    edm: ClassVar[bool] = False  # whether the noise levels are those of EDM

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """A UNet, two CLIP text encoders, and a scheduler of that kind."""
        edm = components.get("scheduler", "").startswith("EDM")
        return super().recognises(components) and edm == cls.edm

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, _, pooled, _ = self.pipe.encode_prompt(
            prompts, device=self.device, do_classifier_free_guidance=False
        )
        return self.told(TextCondition(embeds, pooled), 1.0)

    def unconditional(self) -> TextCondition:
        empty = super().unconditional()
        if not self.pipe.config.force_zeros_for_empty_prompt:
            return empty
        assert empty.pooled is not None
        zeros = (torch.zeros_like(part) for part in (empty.embeds, empty.pooled))
        return replace(empty, embeds=next(zeros), pooled=next(zeros))

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        height, width = (side * self.vae_factor for side in z.shape[-2:])
        ids = z.new_tensor([[height, width, 0, 0, height, width]]).expand(len(z), -1)
        added = {"text_embeds": text.pooled, "time_ids": ids}
        return {**super()._inputs(z, time, text), "added_cond_kwargs": added}
