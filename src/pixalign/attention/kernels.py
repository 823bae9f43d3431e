"""The Triton kernels behind `pixalign.attention.fused`; imported only where Triton is there.

All tensors are contiguous: queries [BH, P, d], keys [BH, K, d], denominators [BH, P]. Triton reads
the annotations of arguments itself, so they have none but its own. Powers are of 2, as the device
takes them.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def log_denominators(
    query, key, logarithms, scale, rows, keys, width,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """logarithms[b, i] = log sum_j exp(scale q_i k_j), a program a tile of rows of one head."""
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, WIDTH)
    within = (i[:, None] < rows) & (d[None, :] < width)
    q = tl.load(query + (head * rows + i[:, None]) * width + d[None, :], mask=within, other=0.0)
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    for start in range(0, keys, KEYS):
        j = start + tl.arange(0, KEYS)
        there = (j[None, :] < keys) & (d[:, None] < width)
        k = tl.load(key + (head * keys + j[None, :]) * width + d[:, None], mask=there, other=0.0)
        logits = tl.where(j[None, :] < keys, tl.dot(q, k) * (scale * LOG2_E), float("-inf"))
        top = tl.maximum(largest, tl.max(logits, 1))
        total = total * tl.exp2(largest - top) + tl.sum(tl.exp2(logits - top[:, None]), 1)
        largest = top
    tl.store(logarithms + head * rows + i, (largest + tl.log2(total)) / LOG2_E, mask=i < rows)


@triton.jit
def add_head_means(
    query, key, denominators, total, scale, share, heads,
    rows, keys, width, stride,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """total[i, j] += share * sum_b exp(scale q_bi k_bj - denominator_bi), one tile a program."""
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    d = tl.arange(0, WIDTH)
    within = (i[:, None] < rows) & (d[None, :] < width)
    there = (j[None, :] < keys) & (d[:, None] < width)
    q_places = query + i[:, None].to(tl.int64) * width + d[None, :]
    k_places = key + j[None, :].to(tl.int64) * width + d[:, None]
    d_places = denominators + i
    added = tl.zeros([QUERIES, KEYS], tl.float32)
    for _ in range(heads):
        q = tl.load(q_places, mask=within, other=0.0)
        k = tl.load(k_places, mask=there, other=0.0)
        log_sum = tl.load(d_places, mask=i < rows, other=0.0)
        added += tl.exp2(tl.dot(q, k) * (scale * LOG2_E) - log_sum[:, None] * LOG2_E)
        q_places += rows * width
        k_places += keys * width
        d_places += rows
    places = total + i[:, None].to(tl.int64) * stride + j[None, :]
    inside = (i[:, None] < rows) & (j[None, :] < keys)
    tl.store(places, tl.load(places, mask=inside, other=0.0) + added * share, mask=inside)
