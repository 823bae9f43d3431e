"""From attention layers to heatmaps, probabilities and masks. Pure functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor

from pixalign.alignment.calibrate import calibrate
from pixalign.attention.layers import CrossWeights, combine_layers
from pixalign.core.maps import minmax, resize, widest
from pixalign.core.values import AttentionMaps, Size

_ROWS_AT_ONCE = 1024  # of a self-attention matrix, while it is multiplied


def refine(maps: Tensor, self_attention: Sequence[Tensor], grid: Size) -> Tensor:
    """... S2 S1 A (line 9) for maps [N, h, w], all classes at once, on the self-attention grid.

    Where self-attention is diffuse, the product is nearly constant and min-max afterwards
    enlarges its rounding error; so it is taken in float64 where the device has it.
    """
    if not self_attention:
        return maps
    wide = widest(maps.device)
    flat = rearrange(resize(maps, grid), "n h w -> (h w) n").to(wide)
    for matrix in self_attention:
        rows = torch.split(matrix, _ROWS_AT_ONCE)
        flat = torch.cat([piece.to(wide) @ flat for piece in rows])
    return rearrange(flat, "(h w) n -> n h w", h=grid[0])


def to_image(maps: Tensor, size: Size) -> Tensor:
    """Heatmaps float32 [N, H, W] in [0, 1] on the CPU: bilinear (line 8), then min-max."""
    heatmaps = torch.empty(len(maps), *size)
    for target, one in zip(heatmaps, maps, strict=True):  # large pictures: one at a time
        target.copy_(enlarge(one[None], size)[0])
    return heatmaps


def enlarge(maps: Tensor, size: Size) -> Tensor:
    """`to_image` of all maps at once, where they are."""
    # The first min-max, in the precision of the refinement, leaves float32 enough digits.
    ready = minmax(maps, (1, 2)).float()
    return minmax(resize(ready, size), (1, 2)).clamp_(0, 1)


def refined_maps(maps: AttentionMaps, combined: Tensor, powers: Tensor) -> Tensor:
    """[V * N, h, w]: lines 6, 7 and 9 on combined layers [N, h, w], under exponents [V, N]."""
    raised = calibrate(combined.repeat(len(powers), 1, 1), powers.flatten())
    return refine(raised, maps.self_attention, maps.grid)


def heatmaps_under(
    maps: AttentionMaps, scheme: CrossWeights | None, powers: Tensor, size: Size
) -> Tensor:
    """float32 [V, N, H, W] for V rows of exponents [V, N]: lines 6 to 9, where the maps are.

    ``scheme`` are the cross weights of a resolved config.
    """
    assert scheme is not None, "the config must be resolved"
    combined = combine_layers(maps.cross, maps.layers, scheme)
    return enlarge(refined_maps(maps, combined, powers), size).reshape(*powers.shape, *size)


def activation(maps: Tensor) -> Tensor:
    """[N]: each map's peak over its mean, 1 for a map that points nowhere."""
    return maps.amax((1, 2)) / maps.mean((1, 2)).clamp_min(torch.finfo(maps.dtype).tiny)
