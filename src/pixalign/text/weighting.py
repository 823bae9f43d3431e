"""Weights of words in a prompt: compel's formula on embeddings that are there already."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted(embeds: Tensor, empty: Tensor, weights: Tensor) -> Tensor:
    """z_empty + w (z - z_empty) for embeddings [P, L, D], those of the empty prompt [L, D] and
    weights [P, L] of 1 or more; what has weight 1 stays as it is."""
    plain, heavy = empty.float(), weights.to(embeds.device)[:, :, None]
    strong = (plain + heavy * (embeds.float() - plain)).to(embeds.dtype)
    return torch.where(heavy > 1, strong, embeds)
