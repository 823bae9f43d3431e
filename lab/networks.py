"""The parts of the lab's models, built from plain dictionaries; diffusers' own classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, PreTrainedModel

from pixalign.backbones import load_backbone
from pixalign.backbones.locations import located
from pixalign.core.checks import check_choice

Config = Mapping[str, Any]

SCHEDULER = {
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "num_train_timesteps": 1000,
    "steps_offset": 1,
    "set_alpha_to_one": False,
    "clip_sample": False,
}
"""The noise of Stable Diffusion 1, 2 and XL."""

_DOWN = {"conv": "DownBlock2D", "self": "AttnDownBlock2D", "cross": "CrossAttnDownBlock2D"}
_UP = {"conv": "UpBlock2D", "self": "AttnUpBlock2D", "cross": "CrossAttnUpBlock2D"}


def build_vae(config: Config) -> Any:
    """An AutoencoderKL without attention: [B, 3, H, W] to [B, C, H/f, W/f], f = 2^(levels - 1)."""
    levels = len(config["channels"])
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=tuple(config["channels"]),
        layers_per_block=config["layers"],
        latent_channels=config["latent_channels"],
        norm_num_groups=config["groups"],
        sample_size=config["size"],
        scaling_factor=config.get("scaling_factor", 1.0),
        mid_block_add_attention=False,
    )


def tower_settings(config: Config, projection: int, tokenizer: Any = None) -> dict[str, int]:
    """One of CLIP's towers in transformers' words; a text tower knows its tokenizer.

    ``config`` says "hidden", "layers", "heads" and perhaps "inner", else four times "hidden".
    """
    sizes = {
        "hidden_size": config["hidden"],
        "intermediate_size": config.get("inner", 4 * config["hidden"]),
        "num_hidden_layers": config["layers"],
        "num_attention_heads": config["heads"],
        "projection_dim": projection,
    }
    if tokenizer is None:
        return sizes
    return sizes | {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": tokenizer.model_max_length,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def text_config(config: Config, tokenizer: Any) -> Any:
    """Of a text tower that projects to its own width."""
    settings = tower_settings(config, config["hidden"], tokenizer)
    return CLIPTextConfig(**settings, hidden_act="quick_gelu")


def build_unet(
    config: Config, latent_size: int, latent_channels: int, text_hidden: int, **more: Any
) -> Any:
    """A UNet for latents [B, C, s, s]; ``more`` goes to diffusers.

    ``attention`` says of each level, finest first, "conv", "self" or "cross". ``heads`` of a
    "self" level is the width of a head (a quirk of diffusers), elsewhere their number.
    ``gain`` multiplies the logits of cross-attention at the start.
    """
    for kind in config["attention"]:
        check_choice("attention of a level", kind, tuple(_DOWN))
    unet = UNet2DConditionModel(
        sample_size=latent_size,
        in_channels=latent_channels,
        out_channels=latent_channels,
        down_block_types=tuple(_DOWN[kind] for kind in config["attention"]),
        up_block_types=tuple(_UP[kind] for kind in reversed(config["attention"])),
        block_out_channels=tuple(config["channels"]),
        layers_per_block=config["layers"],
        attention_head_dim=tuple(config["heads"]),
        norm_num_groups=config["groups"],
        cross_attention_dim=text_hidden,
        transformer_layers_per_block=config["depth"],
        **more,
    )
    with torch.no_grad():
        for name, parameter in unet.named_parameters():
            if name.endswith(("attn2.to_q.weight", "attn2.to_k.weight")):
                parameter.mul_(config["gain"] ** 0.5)
    return unet


def save_pipeline(pipe: Any, folder: Path) -> None:
    """Write a pipeline whose denoiser and VAE take two bytes a number; the caller's stays as it is.

    Text encoders stay in float32: transformers loads what is stored, diffusers float32, and a
    plain call would mix the two.
    """
    copies = {
        name: copy_as(part, torch.float32 if isinstance(part, PreTrainedModel) else torch.float16)
        for name, part in pipe.components.items()
        if isinstance(part, nn.Module)
    }
    names = ("requires_safety_checker", "force_zeros_for_empty_prompt")
    settings = {name: pipe.config[name] for name in names if name in pipe.config}
    type(pipe)(**{**pipe.components, **copies}, **settings).save_pretrained(folder)


def copy_as(model: Any, dtype: torch.dtype) -> Any:
    """The model in another number type on the CPU, without training's memory layout."""
    kind = type(model)
    build = kind if isinstance(model, PreTrainedModel) else kind.from_config
    copy = build(model.config)
    nn.Module.to(copy, dtype)  # diffusers' own `to` warns of modules that these models lack
    copy.load_state_dict({k: v.to("cpu", dtype) for k, v in model.state_dict().items()})
    return copy.eval()


def load_vae(folder: Path, device: str) -> Any:
    """A trained VAE from its own folder or a pipeline's, float32 and frozen."""
    subfolder = "vae" if (folder / "vae").is_dir() else None
    vae = AutoencoderKL.from_pretrained(folder, subfolder=subfolder, dtype=torch.float32)
    # A saved pipeline names no folder of this machine, and SD3's adds the shift to latents.
    vae.register_to_config(_name_or_path="", shift_factor=0.0)
    return vae.to(device).eval().requires_grad_(False)


def load_pipeline(folder: str | Path, device: str) -> Any:
    """A saved pipeline of any family in float32, quiet."""
    return load_backbone(located(folder), device, "float32").pipe


def latent_side(vae: Any, size: int) -> int:
    """The side of the latents of a picture of that side."""
    return int(size // 2 ** (len(vae.config.block_out_channels) - 1))


def parameter_count(module: nn.Module) -> int:
    """How many numbers the module learns."""
    return sum(p.numel() for p in module.parameters())
