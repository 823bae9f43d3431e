"""Small operations on maps: range, size, precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pixalign.core.values import Size

# Differences below this share of the largest magnitude are rounding, not signal.
_RESOLUTION = 1e-6
# Pixels of maps that are worked on at once: what a CPU's cache holds, and 64 MiB of float32.
_PIXELS = {"cpu": 2**17, "cuda": 2**24}


def in_parts(maps: Tensor, size: Size) -> Iterator[slice]:
    """All maps [N, ...], to be had at a (height, width), a few at a time: of large ones one."""
    together = max(1, _PIXELS.get(maps.device.type, 2**22) // (size[0] * size[1]))
    for first in range(0, len(maps), together):
        yield slice(first, min(first + together, len(maps)))


def minmax(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Map values to [0, 1] over ``dims``; what is constant there becomes 0."""
    low = values.amin(dims, keepdim=True)
    high = values.amax(dims, keepdim=True)
    span = high - low
    flat = span <= _RESOLUTION * torch.maximum(low.abs(), high.abs())
    return torch.where(flat, 0.0, (values - low) / torch.where(flat, 1.0, span))


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point type that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def resize(maps: Tensor, size: Size) -> Tensor:
    """Maps [..., h, w] at another (height, width), bilinearly."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    flat = maps.reshape(1, -1, *maps.shape[-2:])
    resized = interpolate(flat, size, mode="bilinear", align_corners=False)
    return resized.reshape(*maps.shape[:-2], *size)
