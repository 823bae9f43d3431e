"""What people add to pipelines: LoRA and image prompts, at tiny size, in their files' own form."""

from typing import Any

import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

from pixalign.backbones import wrap
from tiny import seeded

IMAGE_WIDTH, IMAGE_TOKENS = 8, 4  # of a picture's embedding, and of what it becomes
_RANK, _STRENGTH = 4, 0.3


@seeded(21)
def lora_weights(pipe: Any) -> dict[str, torch.Tensor]:
    """A LoRA on the projections of the denoiser's attention, as its file holds it."""
    backbone = wrap(pipe)
    network = type(backbone.denoiser).from_config(backbone.denoiser.config)
    network.add_adapter(LoraConfig(r=_RANK, target_modules=["to_q", "to_k", "to_v"]))
    return {
        f"{backbone.network}.{key}": _STRENGTH * torch.randn_like(weight)
        for key, weight in get_peft_model_state_dict(network).items()
    }


def add_lora(pipe: Any, name: str = "style") -> None:
    """The same, loaded as people do."""
    pipe.load_lora_weights(lora_weights(pipe), adapter_name=name)


@seeded(22)
def add_image_prompt(pipe: Any) -> torch.Tensor:
    """An IP-Adapter, loaded as people do; gives a picture's embedding [1, 1, D]."""
    network, layers = wrap(pipe).denoiser, {}
    unet = hasattr(pipe, "unet")
    wide = network.config.cross_attention_dim if unet else network.config.joint_attention_dim
    for index, name in enumerate(network.attn_processors):
        module = network.get_submodule(name.removesuffix(".processor"))
        if not unet or name.endswith("attn2.processor"):
            for part in ("k", "v"):
                layers[f"{index}.to_{part}_ip.weight"] = torch.randn(module.inner_dim, wide)
                layers[f"{index}.to_{part}_ip.bias"] = torch.randn(module.inner_dim)
    projection = {
        "proj.weight": torch.randn(IMAGE_TOKENS * wide, IMAGE_WIDTH),
        "proj.bias": torch.randn(IMAGE_TOKENS * wide),
        "norm.weight": torch.ones(wide),
        "norm.bias": torch.zeros(wide),
    }
    if unet:
        layers = {name: weight for name, weight in layers.items() if name.endswith("weight")}
    adapter = {"image_proj": projection, "ip_adapter": layers}
    where = {"subfolder": "", "image_encoder_folder": None} if unet else {}
    if not unet:
        where = {"image_encoder_pretrained_model_name_or_path": None}
    pipe.load_ip_adapter(adapter, weight_name="", **where)
    return torch.randn(1, 1, IMAGE_WIDTH)
