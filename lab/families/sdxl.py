"""The family with two text encoders, a pooled text and the picture's size: sdxl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from diffusers import DDIMScheduler, StableDiffusionXLPipeline
from torch import Tensor, nn
from transformers import CLIPTextModel

from lab.families.base import DENOISER, Family, Parts, copy_matching
from lab.families.towers import build_towers, inherit_words, read_towers
from lab.networks import SCHEDULER, build_unet, latent_side
from lab.recipe import Recipe
from pixalign.core.values import TextCondition

_TIME_WIDTH = 8  # of each of the six numbers about the picture


class Sdxl(Family):
    """Like Stable Diffusion XL: a deeper lowest level, linear projections, added conditions."""

    name = "sdxl"
    recipe: ClassVar[Recipe] = {
        "unet": {"channels": (32, 64, 64), "heads": (2, 2, 2), "groups": 8, "depth": (1, 1, 2)},
    }

    def build(self, recipe: Recipe, vae: Any, tokenizer: Any) -> Parts:
        """A UNet that is told the pooled text and six numbers about the picture."""
        widths = recipe["towers"]["widths"]
        towers = build_towers(recipe["towers"], tokenizer, CLIPTextModel)
        side, channels = latent_side(vae, recipe["size"]), vae.config.latent_channels
        unet = build_unet(
            recipe["unet"],
            side,
            channels,
            sum(widths),
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=_TIME_WIDTH,
            projection_class_embeddings_input_dim=6 * _TIME_WIDTH + widths[1],
        )
        return nn.ModuleDict({**towers, DENOISER: unet})

    def encode(self, parts: Parts, ids: Tensor) -> TextCondition:
        """Both towers' states, and the second one's pooled vector."""
        states, _, pooled = read_towers(parts, ids)
        return TextCondition(states, pooled)

    def pipeline(self, parts: Mapping[str, Any], vae: Any, tokenizer: Any) -> Any:
        """A StableDiffusionXLPipeline; an empty prompt is encoded like any other."""
        return StableDiffusionXLPipeline(
            vae=vae,
            text_encoder=parts["text_encoder"],
            text_encoder_2=parts["text_encoder_2"],
            tokenizer=tokenizer,
            tokenizer_2=tokenizer,
            unet=parts[DENOISER],
            scheduler=DDIMScheduler(**SCHEDULER, prediction_type="epsilon"),
            force_zeros_for_empty_prompt=False,
            add_watermarker=False,
        )

    def inherit(self, parts: Parts, donor: Any) -> None:
        """The words, and tensors of one shape."""
        inherit_words(parts, donor.text_encoder)
        copy_matching(parts[DENOISER], donor.unet)
