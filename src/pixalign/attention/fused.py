"""Self-attention summed over heads and passes on a GPU, without a matrix for each of them.

Two kernels: the logarithm of each softmax's denominator, then one tile of the sum at a time, to
which every head and pass adds its probabilities before anything is written. Products are of half
precision numbers with float32 sums, as the networks' own fused attention takes them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

# A tile's queries and keys, and the groups of 32 threads that share it.
_DENOMINATORS = (128, 64, 4)
_MEANS = (128, 128, 8)
_LARGEST_HEAD = 128


def usable(query: Tensor) -> bool:
    """Whether the kernels take queries [B, heads, P, d] of this type, size and device."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and query.shape[-1] <= _LARGEST_HEAD and bool(_kernels())


def log_denominators(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """float32 [B, heads, P]: log sum_j exp(scale q_i k_j) over keys [B, heads, K, d]."""
    batch, heads, rows, width = query.shape
    query, key = query.contiguous(), key.contiguous()
    logarithms = torch.empty(batch, heads, rows, dtype=torch.float32, device=query.device)
    queries, keys, warps = _DENOMINATORS
    grid = (-(-rows // queries), batch * heads)
    _kernels().log_denominators[grid](
        query, key, logarithms, scale, rows, key.shape[2], width,
        QUERIES=queries, KEYS=keys, WIDTH=_padded(width), num_warps=warps,
    )  # fmt: skip
    return logarithms


def add_head_means(
    total: Tensor, query: Tensor, key: Tensor, denominators: Tensor, scale: float
) -> None:
    """total float32 [P, K] += the mean over heads, summed over B, of exp(scale q k - denominator).

    ``denominators`` are those of `log_denominators`, which may have seen further keys.
    """
    batch, heads, rows, width = query.shape
    query, key, denominators = (x.contiguous() for x in (query, key, denominators))
    queries, keys, warps = _MEANS
    grid = (-(-rows // queries), -(-key.shape[2] // keys))
    _kernels().add_head_means[grid](
        query, key, denominators, total, scale, 1 / heads, batch * heads, rows, key.shape[2],
        width, total.stride(0), QUERIES=queries, KEYS=keys, WIDTH=_padded(width), num_warps=warps,
    )  # fmt: skip


def _padded(width: int) -> int:
    """The next power of 2, from 16: what a tile's product takes."""
    return max(16, 1 << (width - 1).bit_length())


@cache
def _kernels() -> Any:
    """The module of kernels; None where Triton is missing."""
    try:
        from pixalign.attention import kernels
    except ImportError:
        return None
    return kernels
