"""The ELBO pixel by pixel: what each class explains, and where. Pure functions of tensors.

With r what the network misses under the empty text and d_i what the text of class i adds, the
error under class i is smaller than under class j just where 2 r d_i - d_i^2 is larger: a log
likelihood ratio at every position, up to scale (the error form). The local cosine, r d_i over the
length of d_i, does not change when the network exaggerates its text (d_i times any w > 0), as
distilled networks with guidance built in do.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from pixalign.config import AlignConfig
from pixalign.core.maps import in_parts, minmax, resize
from pixalign.core.values import Evidence, Size


def blur(maps: Tensor, share: float) -> Tensor:
    """Maps [..., h, w] under a Gaussian whose sigma is that share of the side, sqrt(h w).

    Beyond the border there is nothing: weights are divided by their sum inside.
    """
    sigma = max(share * math.sqrt(maps.shape[-2] * maps.shape[-1]), 1e-3)
    rows, columns = (_gaussian(side, sigma, maps.dtype, maps.device) for side in maps.shape[-2:])
    return rows @ maps @ columns.T


@lru_cache(maxsize=32)
def _gaussian(side: int, sigma: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[side, side]: the weights of all places at each."""
    places = torch.arange(side, dtype=torch.float64)
    kernel = torch.exp(-(((places[:, None] - places) / sigma) ** 2) / 2)
    return (kernel / kernel.sum(1, keepdim=True)).to(device, dtype)


def local_cosine(evidence: Evidence, share: float) -> Tensor:
    """[N, h, w]: blurred r d over the length of blurred d, in units of the mean length of r.

    The cosine of what a text adds with what was missing, where both are spread evenly.
    """
    return cosine(blur(evidence.projection, share), blur(evidence.energy, share))


def cosine(projection: Tensor, energy: Tensor) -> Tensor:
    """Projections over the lengths of what the texts add; 0 where a text adds nothing."""
    return projection / energy.clamp_min(torch.finfo(torch.float32).tiny).sqrt()


@lru_cache(maxsize=4)  # layers, heatmaps and the result all ask for it
def log_ratio(evidence: Evidence, config: AlignConfig) -> Tensor:
    """L float32 [N, h, w], at most 0: by how much another class explains a position better.

    The blurred form, minus the mean over the classes, in units of its standard deviation over
    classes and positions, minus the maximum over the classes. It is 0 for a single class.
    """
    if config.evidence_form == "error":
        support = blur(2 * evidence.projection - evidence.energy, config.evidence_blur)
    else:
        support = local_cosine(evidence, config.evidence_blur)
    centred = support - support.mean(0, keepdim=True)
    spread = centred.square().mean().sqrt()
    same = spread <= 1e-6 * support.abs().amax()  # nothing but rounding
    lead = torch.where(same, 0.0, centred / spread.clamp_min(torch.finfo(torch.float32).tiny))
    return lead - lead.amax(0, keepdim=True)


def information(evidence: Evidence, config: AlignConfig) -> Tensor:
    """O float32 [N, h, w] in [0, 1]: where a class's text changes the estimate at all.

    It is 1 everywhere for a text that changes every position alike.
    """
    told = minmax(blur(evidence.energy, config.information_blur), (1, 2))
    return torch.where(told.amax((1, 2), keepdim=True) > 0, told, 1.0)


def weigh(heatmaps: Tensor, evidence: Evidence, config: AlignConfig) -> Tensor:
    """H^(1 - a) O^a exp(beta min(0, L + m)) for heatmaps float32 [N, H, W], min-max at the end.

    Each factor is enlarged once, straight to the picture. The evidence is a veto: it acts where
    another class leads by more than the margin m; with m = 0 it is the plain product.
    """
    size: Size = (heatmaps.shape[-2], heatmaps.shape[-1])
    ratio, told = (of(evidence, config).to(heatmaps.device) for of in (log_ratio, information))
    share, weighed = config.information_weight, torch.empty_like(heatmaps)
    assert share is not None, "the config must be resolved"
    for part in in_parts(heatmaps, size):
        veto = (resize(ratio[part], size) + config.evidence_margin).clamp_max(0)
        factor = resize(told[part], size) ** share * torch.exp(config.evidence_strength * veto)
        weighed[part] = minmax(heatmaps[part] ** (1 - share) * factor, (1, 2))
    return weighed
