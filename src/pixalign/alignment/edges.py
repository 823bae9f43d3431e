"""Heatmaps that follow the picture's edges. Pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from pixalign.config import EDGES
from pixalign.core.checks import check_choice
from pixalign.core.maps import in_parts, resize, widest

# Chosen on half of the photographs of benchmarks/edges.py; docs/edges/photos.json has the others.
RADIUS = 1.0  # of a window, in cells: an edge may lie anywhere in a cell, and no farther
# He et al.'s: contrasts below its root say nothing. For photographs 1e-4 is as good, but then the
# compression noise of a flat ground is taken for edges (tests/benchmarks/test_edges.py).
EPSILON = 1e-3
SAMPLES = 8  # pixels along a cell that the fit looks at: twice as many gain 0.2 point at most


def follow_edges(heatmaps: Tensor, picture: Tensor, kind: str, cell: float) -> Tensor:
    """Heatmaps [N, H, W] whose edges are drawn to those of the picture [3, H, W], all in [0, 1].

    ``kind`` is one of EDGES; ``cell`` is the side, in pixels, of a cell of the maps that were
    enlarged to the heatmaps: that far apart may an edge and its trace in the heatmaps lie.
    """
    check_choice("edges", kind, EDGES)
    shapes = tuple(heatmaps.shape), tuple(picture.shape)
    if heatmaps.ndim != 3 or shapes[1] != (3, *shapes[0][1:]):
        raise ValueError(
            f"heatmaps are {shapes[0]} and the picture {shapes[1]}; allowed: [N, H, W], [3, H, W]"
        )
    if not cell > 0:
        raise ValueError(f"cell is {cell!r}; allowed: more than 0")
    return heatmaps if kind == "none" else guided(heatmaps, picture, cell)


def guided(
    heatmaps: Tensor,
    picture: Tensor,
    cell: float,
    *,
    radius: float = RADIUS,
    epsilon: float = EPSILON,
) -> Tensor:
    """What the guided filter adds to heatmaps because of the picture, clamped to [0, 1].

    The guided filter (He, Sun and Tang, PAMI 2013, with a colour guide) explains a heatmap p in
    every window k by the colours I there, p = a_k I + b_k, and averages over a pixel's windows:
    q_i = mean(a_k) I_i + mean(b_k), with a_k = (cov(I) + epsilon)^-1 cov(I, p) and
    b_k = mean(p) - a_k mean(I). On a flat picture that is mean(mean(p)), a blur, which costs more
    than it gains where cells are small. So only the rest, what colours say, is added to p:

        p_i + mean(a_k) I_i - mean(a_k mean(I)),

    and a flat picture changes nothing. Windows reach ``radius`` cells. a_k is fitted on a picture
    of at most SAMPLES pixels a cell and then enlarged: time is linear in the pixels, and of a large
    picture no more than three maps of one class [H, W] are held beside the heatmaps.
    """
    height, width = heatmaps.shape[1:]
    step = max(1.0, cell / SAMPLES)
    reach = round(radius * cell / step)
    if reach < 1:  # a cell is a pixel: the heatmaps know their edges
        return heatmaps
    small = max(1, round(height / step)), max(1, round(width / step))
    colours = adaptive_avg_pool2d(picture, small).to(widest(picture.device))
    mean, inverse = _statistics(colours, reach, epsilon)
    followed = torch.empty_like(heatmaps)
    for part in in_parts(heatmaps, (height, width)):
        heatmap = heatmaps[part]
        values = adaptive_avg_pool2d(heatmap, small).to(colours)
        shape = len(heatmap), 3, *small
        products = window_mean((values[:, None] * colours).flatten(0, 1), reach)
        covariance = products.reshape(shape) - window_mean(values, reach)[:, None] * mean
        slope = covariance[:, 0, None] * inverse[0]
        for channel in (1, 2):
            slope.addcmul_(covariance[:, channel, None], inverse[channel])
        offset = window_mean((slope * mean).sum(1), reach)
        weights = window_mean(slope.flatten(0, 1), reach).reshape(shape).to(heatmap)
        target = heatmap - resize(offset.to(heatmap), (height, width))
        for channel, colour in enumerate(picture):
            target.addcmul_(resize(weights[:, channel], (height, width)), colour)
        followed[part] = target.clamp_(0, 1)
    return followed


def window_mean(values: Tensor, reach: int) -> Tensor:
    """The mean of values [C, H, W] over windows of (2 reach + 1)^2, cut at the border."""
    side = 2 * reach + 1
    for window, padding in (((side, 1), (reach, 0)), ((1, side), (0, reach))):
        values = avg_pool2d(values, window, 1, padding, count_include_pad=False)
    return values


def _statistics(colours: Tensor, reach: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Of each window of colours [3, h, w]: mean [3, h, w], (cov + epsilon)^-1 [3, 3, h, w].

    The inverse is that of a symmetric matrix by its minors.
    """
    mean = window_mean(colours, reach)
    one, other = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)
    products = window_mean(colours[list(one)] * colours[list(other)], reach)
    rr, rg, rb, gg, gb, bb = products - mean[list(one)] * mean[list(other)]
    rr, gg, bb = rr + epsilon, gg + epsilon, bb + epsilon
    first = gg * bb - gb * gb, rb * gb - rg * bb, rg * gb - rb * gg
    minors = [*first, rr * bb - rb * rb, rg * rb - rr * gb, rr * gg - rg * rg]
    determinant = rr * first[0] + rg * first[1] + rb * first[2]
    places = (0, 1, 2, 1, 3, 4, 2, 4, 5)
    inverse = torch.stack([minors[place] for place in places]) / determinant
    return mean, inverse.reshape(3, 3, *inverse.shape[1:])
