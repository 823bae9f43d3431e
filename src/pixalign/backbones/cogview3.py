"""CogView3-Plus: joint attention over T5 and the picture, told by index like Stable Diffusion."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.cogview4 import sizes
from pixalign.backbones.discrete import DiscreteBackbone
from pixalign.backbones.transformer import Transformer
from pixalign.core.values import TextCondition
from pixalign.diffusion.schedule import DiscreteSchedule
from pixalign.text.streams import TextStream

LENGTH = 224  # what the pipeline reads unless told otherwise


class CogView3Plus(Transformer, DiscreteBackbone):
    """CogView3-Plus."""

    family = "cogview3-plus"
    description = "CogView3-Plus (joint attention, velocity, T5)"
    examples = ("zai-org/CogView3-Plus-3B",)
    transformer = "CogView3PlusTransformer2DModel"
    layers = {"transformer_blocks": {"attn1": "joint"}}  # noqa: RUF012
    half_dtype = torch.bfloat16
    guidance = 5.0

    @property
    def largest_side(self) -> int:
        return int(self.denoiser.config.pos_embed_max_size) * self.size_multiple

    @cached_property
    def schedule(self) -> DiscreteSchedule:
        """The table of its own schedulers, which have a shift that others do not know."""
        from diffusers import CogVideoXDDIMScheduler

        config = self.pipe.scheduler.config
        if config.get("snr_shift_scale") is None:
            raise ValueError(
                f"{type(self.pipe.scheduler).__name__} has no snr_shift_scale; CogView3-Plus was "
                "trained with one, so use the model's own scheduler"
            )
        return DiscreteSchedule(CogVideoXDDIMScheduler.from_config(config).alphas_cumprod)

    def _streams(self) -> tuple[TextStream, ...]:
        return (TextStream("t5", self.pipe.tokenizer, 0, LENGTH),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"do_classifier_free_guidance": False, "device": self.device}
        return TextCondition(self.pipe.encode_prompt(prompts, **how)[0])

    def unconditional(self) -> TextCondition:
        """Zeros, from which the pipeline leads away unless it is told a text."""
        return super().unconditional().map(torch.zeros_like)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        return {
            "hidden_states": z,
            "encoder_hidden_states": text.embeds,
            "timestep": time.long(),
            **sizes(z, self.vae_factor),
        }
