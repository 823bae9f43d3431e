"""The maps of several layers as one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from pixalign.core.checks import check_choice
from pixalign.core.maps import resize
from pixalign.core.values import Layers

# The paper's weights by rank of resolution, lowest first; two resolutions take 15, 1.
_BY_RESOLUTION = (15.0, 10.0, 1.0, 1.0)


CrossWeights = str | tuple[float, ...] | Mapping[str, float]


def layer_weights(layers: Layers, scheme: CrossWeights) -> list[float]:
    """The weight of each cross-attention layer.

    "uniform": all alike; "balanced" too, after each layer is divided by its mean.
    "resolution": 15, 10, 1, 1 from the lowest resolution up (two resolutions: 15, 1; one: all
    alike); a tuple gives these weights itself. "gaussian": exp(-(l - middle)^2 / 18) for layer l.
    A mapping gives layers their weights by name; those it does not name have none.
    """
    if scheme in ("uniform", "balanced"):
        return [1.0] * len(layers)
    if scheme == "gaussian":
        return [math.exp(-((layer - layers.middle) ** 2) / 18) for layer in range(len(layers))]
    if isinstance(scheme, Mapping):
        for name in scheme:
            check_choice("a layer in cross_weights", name, layers.names)
        return [float(scheme.get(name, 0.0)) for name in layers.names]
    ranks = sorted(set(layers.factors), reverse=True)
    if isinstance(scheme, str):
        weights: tuple[float, ...] = (15.0, 1.0) if len(ranks) == 2 else _BY_RESOLUTION
        weights += (1.0,) * (len(ranks) - len(weights))
    elif len(scheme) != len(ranks):
        raise ValueError(
            f"cross_weights has {len(scheme)} weights, the model has {len(ranks)} resolutions"
        )
    else:
        weights = scheme
    return [weights[ranks.index(factor)] for factor in layers.factors]


def combine_layers(cross: Sequence[Tensor], layers: Layers, scheme: CrossWeights) -> Tensor:
    """The weighted mean of layers [..., h_l, w_l], at the highest resolution among them."""
    weights = layer_weights(layers, scheme)
    size = max((layer.shape[-2:] for layer in cross), key=lambda grid: grid[0] * grid[1])
    sums: dict[int, Tensor] = {}  # layers of one resolution first: each is enlarged once
    for layer, factor, weight in zip(cross, layers.factors, weights, strict=True):
        if weight:
            share = weight / layer_mean(layer) if scheme == "balanced" else weight
            sums[factor] = sums.get(factor, 0) + share * layer
    total = sum(resize(layer, (size[0], size[1])) for layer in sums.values())
    assert isinstance(total, Tensor)
    return total / sum(weights)


def layer_mean(layer: Tensor) -> float:
    """The mean of a layer's maps, by which layers become comparable; 1 where all is 0."""
    return float(layer.mean()) or 1.0
