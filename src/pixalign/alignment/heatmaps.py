"""From attention layers to heatmaps, probabilities and masks. Pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from pixalign.alignment.calibrate import calibrate
from pixalign.alignment.edges import follow_edges
from pixalign.alignment.evidence import log_ratio, weigh
from pixalign.attention.layers import CrossWeights, combine_layers, layer_mean
from pixalign.config import AlignConfig
from pixalign.core.maps import in_parts, minmax, resize, widest
from pixalign.core.values import AttentionMaps, Evidence, Size

_ROWS_AT_ONCE = 1024  # of a self-attention matrix, while it is multiplied
_ON_DEVICE = 2**26  # pixels of heatmaps that a device holds: 256 MiB


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
    """Heatmaps float32 [N, H, W] in [0, 1]: bilinear (line 8), then min-max.

    They stay where the maps are, unless they are so many or large that the CPU must hold them.
    """
    few = len(maps) * size[0] * size[1] <= _ON_DEVICE
    heatmaps = torch.empty(len(maps), *size, device=maps.device if few else "cpu")
    for part in in_parts(maps, size):
        heatmaps[part] = enlarge(maps[part], size).to(heatmaps.device)
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


def combined_layers(
    maps: AttentionMaps, config: AlignConfig, evidence: Evidence | None = None
) -> Tensor:
    """[N, h, w]: the weighted mean over the layers under a resolved config."""
    assert config.cross_weights is not None, "the config must be resolved"
    weights: CrossWeights = config.cross_weights
    if weights == "agreement":
        assert evidence is not None
        assert config.agreement_floor is not None
        weights = layer_agreement(maps, log_ratio(evidence, config), config.agreement_floor)
    return combine_layers(maps.cross, maps.layers, weights)


def layer_agreement(maps: AttentionMaps, ratio: Tensor, floor: float = 0.0) -> dict[str, float]:
    """Weights of the layers by how well each agrees with the evidence [N, h, w]: no labels needed.

    The floor and the square of the correlation, where it is positive, of a layer's refined maps
    with the log ratio, both minus their means over the classes; over the layer's mean, so that
    layers become comparable. Where none agrees, as with a single class, all layers count alike.
    """
    lead = resize(ratio, maps.grid).to(maps.cross[0])
    lead = (lead - lead.mean(0)).flatten()
    stacked = torch.cat([resize(layer, maps.grid) for layer in maps.cross])
    refined = refine(stacked, maps.self_attention, maps.grid)
    refined = refined.reshape(len(maps.cross), -1, *maps.grid)
    own = (refined - refined.mean(1, keepdim=True)).flatten(1).to(lead)
    scale = (own.norm(dim=1) * lead.norm()).clamp_min(torch.finfo(lead.dtype).tiny)
    agreeing = (floor + (own @ lead / scale).clamp_min(0).square()).tolist()
    if not any(agreeing):
        agreeing = [1.0] * len(agreeing)
    layers = zip(maps.layers.names, agreeing, maps.cross, strict=True)
    return {name: weight / layer_mean(layer) for name, weight, layer in layers}


def heatmaps_under(maps: AttentionMaps, combined: Tensor, powers: Tensor, size: Size) -> Tensor:
    """float32 [V, N, H, W] for V rows of exponents [V, N]: lines 6 to 9, where the maps are."""
    return enlarge(refined_maps(maps, combined, powers), size).reshape(*powers.shape, *size)


def finish(
    heatmaps: Tensor,
    grid: Size,
    picture: Image.Image,
    evidence: Evidence | None,
    config: AlignConfig,
) -> Tensor:
    """Heatmaps [N, H, W], enlarged from a grid, under evidence and the picture's edges.

    Each step acts where the config asks for it, where the heatmaps are.
    """
    if config.calibrate == "evidence":
        assert evidence is not None
        heatmaps = weigh(heatmaps, evidence, config)
    if config.edges == "none":
        return heatmaps
    cell = math.sqrt(picture.width * picture.height / (grid[0] * grid[1]))
    colours = torch.from_numpy(np.array(picture.convert("RGB"))).to(heatmaps.device)
    return follow_edges(heatmaps, colours.permute(2, 0, 1) / 255, str(config.edges), cell)


def activation(maps: Tensor) -> Tensor:
    """[N]: each map's peak over its mean, 1 for a map that points nowhere."""
    return maps.amax((1, 2)) / maps.mean((1, 2)).clamp_min(torch.finfo(maps.dtype).tiny)
