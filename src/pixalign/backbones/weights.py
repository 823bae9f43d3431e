"""Weights of a byte each, which become numbers of the network's type when a layer computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_GROUP = 32  # neighbours in a row of a weight that share a scale
_NARROW = 32  # channels; layers of fewer lead into latents or out of them, and are small
_MOST = 127.0


class Int8Weight(nn.Module):
    """What torch's parametrisation keeps of a weight [out, ...]: whole numbers, and their scales.

    A weight whose rows are not of whole groups has a scale for each row.
    """

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """int8 in the weight's shape and scales [out, groups, 1] in its type: the nearest."""
        row = weight[0].numel()
        groups = weight.reshape(len(weight), -1, row if row % _GROUP else _GROUP).float()
        scales = (groups.abs().amax(2, keepdim=True) / _MOST).to(weight.dtype)
        scales = scales.clamp_min(torch.finfo(weight.dtype).tiny)
        numbers = (groups / scales.float()).round().clamp(-_MOST, _MOST).to(torch.int8)
        return numbers.reshape(weight.shape), scales

    def forward(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """The weight in the scales' type."""
        return (numbers.reshape(*scales.shape[:2], -1) * scales).reshape(numbers.shape)


def byte_layers(pipe: Any) -> list[nn.Module]:
    """The layers of a pipeline whose weights can be kept in a byte each.

    These are linear and convolutional ones, but for narrow ones and the VAE's.
    """
    parts = [part for name, part in pipe.components.items() if name != "vae"]
    layers = [each for part in parts if isinstance(part, nn.Module) for each in part.modules()]
    return [
        layer
        for layer in layers
        if isinstance(layer, nn.Linear | nn.Conv2d) and min(layer.weight.shape[:2]) >= _NARROW
    ]


def keep_as_int8(pipe: Any) -> None:
    """Keep the weights of a pipeline's `byte_layers` as int8; all else stays as it is."""
    for layer in byte_layers(pipe):
        layer.weight.requires_grad_(False)
        parametrize.register_parametrization(layer, "weight", Int8Weight(), unsafe=True)


def kept_as_int8(module: nn.Module) -> bool:
    """Whether weights of a module are kept as int8."""
    return any(isinstance(part, Int8Weight) for part in module.modules())
