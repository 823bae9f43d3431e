"""Families with a UNet and one text encoder: epsilon (sd1) and velocity (sd2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from torch import Tensor, nn
from transformers import CLIPTextModel

from lab.families.base import DENOISER, Family, Parts, copy_matching, load_whole
from lab.families.towers import PLACES, named_tensor
from lab.networks import SCHEDULER, build_unet, latent_side, text_config
from lab.recipe import Recipe
from pixalign.core.values import TextCondition


class Sd1(Family):
    """Like Stable Diffusion 1: the network estimates the noise."""

    name = "sd1"
    prediction_type = "epsilon"

    def build(self, recipe: Recipe, vae: Any, tokenizer: Any) -> Parts:
        """A UNet, and a text encoder whose places in the text count little at the start."""
        text = CLIPTextModel(text_config(recipe["text"], tokenizer))
        with torch.no_grad():
            named_tensor(text, PLACES).mul_(recipe["text"]["position_gain"])
        text.requires_grad_(not recipe["text"]["frozen"])
        side, channels = latent_side(vae, recipe["size"]), vae.config.latent_channels
        unet = build_unet(recipe["unet"], side, channels, recipe["text"]["hidden"])
        return nn.ModuleDict({"text_encoder": text, DENOISER: unet})

    def encode(self, parts: Parts, ids: Tensor) -> TextCondition:
        """The encoder's last states."""
        return TextCondition(parts["text_encoder"](ids)[0])

    def pipeline(self, parts: Mapping[str, Any], vae: Any, tokenizer: Any) -> Any:
        """A StableDiffusionPipeline without a safety checker."""
        return StableDiffusionPipeline(
            vae=vae,
            text_encoder=parts["text_encoder"],
            tokenizer=tokenizer,
            unet=parts[DENOISER],
            scheduler=DDIMScheduler(**SCHEDULER, prediction_type=self.prediction_type),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )


class Sd2(Sd1):
    """Like Stable Diffusion 2: the network estimates the velocity.

    A third of sd1's size, so only its words and what has its shape are taken over; the words stay
    as they are, and the text encoder is sd1's.
    """

    name = "sd2"
    prediction_type = "v_prediction"
    recipe: ClassVar[Recipe] = {
        "text": {"frozen": True},
        "unet": {"channels": (32, 64, 96), "heads": (2, 2, 3), "groups": 8},
    }

    def inherit(self, parts: Parts, donor: Any) -> None:
        """The words, and tensors of one shape."""
        load_whole(parts["text_encoder"], donor.text_encoder, "text_encoder")
        copy_matching(parts[DENOISER], donor.unet)
