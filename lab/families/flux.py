"""The family of double and single streams: flux, whose words T5 reads one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from transformers import CLIPTextModel, T5Config, T5EncoderModel

from lab.families.base import DENOISER, Family, Parts, load_whole
from lab.families.towers import WORDS, named_tensor
from lab.networks import text_config
from lab.recipe import Recipe
from pixalign.core.values import TextCondition

_GATES = ("norm1.linear", "norm1_context.linear", "norm.linear", "norm_out.linear")


class Flux(Family):
    """Like FLUX.1 schnell, not distilled: packed latents, rotary positions, T5 and pooled CLIP.

    T5 has no layers here, so that words are read alone; CLIP is sd1's encoder, as it is.
    """

    name = "flux"
    recipe: ClassVar[Recipe] = {"timesteps": "half", "timestep_mean": 0.0}

    def build(self, recipe: Recipe, vae: Any, tokenizer: Any) -> Parts:
        """A transformer over 2 x 2 patches of latents, of any size."""
        settings, hidden = recipe["streams"], recipe["text"]["hidden"]
        width, place = settings["head_width"], settings["head_width"] // 8
        words = T5Config(
            vocab_size=len(tokenizer), d_model=hidden, d_kv=8, d_ff=8, num_layers=0, num_heads=1,
            dropout_rate=0.0, pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        transformer = FluxTransformer2DModel(
            in_channels=4 * vae.config.latent_channels,
            num_layers=settings["double"],
            num_single_layers=settings["single"],
            attention_head_dim=width,
            num_attention_heads=settings["heads"],
            joint_attention_dim=hidden,
            pooled_projection_dim=hidden,
            axes_dims_rope=(2 * place, 3 * place, 3 * place),
        )
        _close_gates(transformer)
        clip = CLIPTextModel(text_config(recipe["text"], tokenizer)).requires_grad_(False)
        parts = {"text_encoder": clip, "text_encoder_2": T5EncoderModel(words)}
        return nn.ModuleDict({**parts, DENOISER: transformer})

    def encode(self, parts: Parts, ids: Tensor) -> TextCondition:
        """T5's states, and CLIP's pooled vector."""
        pooled = parts["text_encoder"](ids).pooler_output
        return TextCondition(parts["text_encoder_2"](ids)[0], pooled)

    def pipeline(self, parts: Mapping[str, Any], vae: Any, tokenizer: Any) -> Any:
        """A FluxPipeline; of a prompt it reads as much as the tokenizer does."""
        return FluxPipeline(
            transformer=parts[DENOISER],
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
            vae=vae,
            text_encoder=parts["text_encoder"],
            tokenizer=tokenizer,
            text_encoder_2=parts["text_encoder_2"],
            tokenizer_2=tokenizer,
        )

    @torch.no_grad()
    def inherit(self, parts: Parts, donor: Any) -> None:
        """The words, as the donor's encoder without layers normalises them, and that encoder."""
        load_whole(parts["text_encoder"], donor.text_encoder, "text_encoder")
        words, weight, bias = (
            named_tensor(donor.text_encoder, name)
            for name in (WORDS, "final_layer_norm.weight", "final_layer_norm.bias")
        )
        small = donor.text_encoder.config.layer_norm_eps
        spread = layer_norm(words, words.shape[1:], weight, bias, small)
        named_tensor(parts["text_encoder_2"], "shared.weight").copy_(spread)


def _close_gates(transformer: Any) -> None:
    """Blocks that change nothing at first, and an output of zero: training begins calmly."""
    for name, module in transformer.named_modules():
        if name.endswith(_GATES) or name == "proj_out":
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
