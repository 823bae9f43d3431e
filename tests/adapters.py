"""What people add to pipelines: LoRA and image prompts, at tiny size, in files' own form."""

from typing import Any

import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict

from pixalign.backbones import wrap
from tiny import seeded

_RANK, _STRENGTH = 4, 0.3


@seeded(21)
def lora_weights(pipe: Any) -> dict[str, torch.Tensor]:
    """A LoRA on the projections of the denoiser's attention, as its file has it."""
    backbone = wrap(pipe)
    network = type(backbone.denoiser).from_config(backbone.denoiser.config)
    network.add_adapter(LoraConfig(r=_RANK, target_modules=["to_q", "to_k", "to_v"]))
    weights = get_peft_model_state_dict(network)
    drawn = {name: _STRENGTH * torch.randn_like(weight) for name, weight in weights.items()}
    return {f"{backbone.network}.{name}": weight for name, weight in drawn.items()}


def add_lora(pipe: Any, name: str = "style") -> None:
    """Load it as people do."""
    pipe.load_lora_weights(lora_weights(pipe), adapter_name=name)
