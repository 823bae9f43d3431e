"""Weights of words in a prompt: compel's formula on embeddings that are there already."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def emphasised(embeds: Tensor, empty: Tensor, columns: Sequence[int], weight: float) -> Tensor:
    """z_empty + weight (z - z_empty) at some columns of embeddings [L, D], for weights above 1."""
    weighted, plain = embeds.clone(), empty[list(columns)].float()
    strong = plain + weight * (embeds[list(columns)].float() - plain)
    weighted[list(columns)] = strong.to(embeds.dtype)
    return weighted
