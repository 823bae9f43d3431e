"""The family with joint attention and a straight path from noise to picture: sd3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModelWithProjection

from lab.families.base import DENOISER, Family, Parts
from lab.families.towers import build_towers, inherit_words, read_towers
from lab.networks import latent_side
from lab.recipe import Recipe
from pixalign.core.values import TextCondition

_T5_LENGTH = 256  # zeros that diffusers' pipeline puts where T5's states would stand


class Sd3(Family):
    """Like Stable Diffusion 3 without T5."""

    name = "sd3"
    recipe: ClassVar[Recipe] = {"timesteps": "half", "timestep_mean": 0.0}

    def build(self, recipe: Recipe, vae: Any, tokenizer: Any) -> Parts:
        """A transformer over 2 x 2 patches of latents, up to twice the native side."""
        settings, widths = recipe["transformer"], recipe["towers"]["widths"]
        towers = build_towers(recipe["towers"], tokenizer, CLIPTextModelWithProjection)
        side, channels = latent_side(vae, recipe["size"]), vae.config.latent_channels
        transformer = SD3Transformer2DModel(
            sample_size=side,
            patch_size=settings["patch"],
            in_channels=channels,
            out_channels=channels,
            num_layers=settings["layers"],
            num_attention_heads=settings["heads"],
            attention_head_dim=settings["head_width"],
            caption_projection_dim=settings["heads"] * settings["head_width"],
            joint_attention_dim=sum(widths),
            pooled_projection_dim=sum(widths),
            pos_embed_max_size=2 * side // settings["patch"],
            qk_norm="rms_norm",
        )
        _closed_gates(transformer)
        return nn.ModuleDict({**towers, DENOISER: transformer})

    def encode(self, parts: Parts, ids: Tensor) -> TextCondition:
        """Both towers' states before as many zeros as diffusers adds, and both pooled vectors."""
        states, first, second = read_towers(parts, ids)
        assert first is not None
        padded = functional.pad(states, (0, 0, 0, _T5_LENGTH))
        return TextCondition(padded, torch.cat([first, second], dim=-1))

    def pipeline(self, parts: Mapping[str, Any], vae: Any, tokenizer: Any) -> Any:
        """A StableDiffusion3Pipeline without T5."""
        return StableDiffusion3Pipeline(
            transformer=parts[DENOISER],
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
            vae=vae,
            text_encoder=parts["text_encoder"],
            tokenizer=tokenizer,
            text_encoder_2=parts["text_encoder_2"],
            tokenizer_2=tokenizer,
            text_encoder_3=None,
            tokenizer_3=None,
        )

    def inherit(self, parts: Parts, donor: Any) -> None:
        """The words."""
        inherit_words(parts, donor.text_encoder)


def _closed_gates(transformer: Any) -> None:
    """Blocks that change nothing at first, and an output of zero: training begins calmly."""
    gates = ("norm1.linear", "norm1_context.linear", "norm_out.linear", "proj_out")
    for name, module in transformer.named_modules():
        if name.endswith(gates):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
