"""Observe attention while a network runs: probabilities from the queries and keys it computes.

Only what is asked for is computed and kept. The network's own (fused) attention computes its
output, so observing changes no bit of it, whatever processor, adapter or offloading is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from einops import rearrange
from torch import Tensor

from pixalign.attention import fused
from pixalign.attention.compiled import CompiledNetwork
from pixalign.attention.reprojection import cross_keys
from pixalign.attention.sites import Site
from pixalign.attention.tap import tapped
from pixalign.core.protocols import TappedNetwork
from pixalign.core.values import AttentionCall, Size

_PROBABILITY_BUDGET = 2**25  # probabilities held at once: 128 MiB of float32


class AttentionReader:
    """Collects head-mean attention of some sites, averaged over a class's text columns.

    Set ``columns``, and ``owners`` where several images are read, before a forward pass; inside
    ``with reader.attached(network)`` every pass leaves each text site's maps in ``cross`` and
    adds to each image's running sums of image-to-image attention in ``self_sums``. With ``text``
    set, cross sites attend to those embeddings instead of the network's own; the network does not.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        self_labels: Mapping[Site, str] | None = None,
        images: int = 1,
        *,
        per_head: bool = False,
        keep_queries: bool = False,
    ) -> None:
        """``self_labels`` names the running sum into which a site's self-attention goes.

        ``per_head`` leaves the heads of ``cross`` apart; ``keep_queries`` fills ``queries``.
        """
        self.sites = tuple(sites)
        self.images = images
        self.per_head, self.keep_queries = per_head, keep_queries
        self.self_labels = dict(self_labels or {})
        self.columns: Tensor | None = None  # [B, L, N] averaging matrices of the rows read
        self.rows: slice | Tensor = slice(None)  # rows of the network's batch to read
        self.cross: dict[Site, Tensor] = {}  # of the last pass: float32 [B, (heads,) N, h, w]
        self.queries: dict[Site, Tensor] = {}  # its text sites': float32 [B, heads, h*w, d]
        self.text: Tensor | None = None  # [B, L, D]
        self.text_mask: Tensor | None = None  # [B, L], added to that text's logits
        self.owners: Tensor | None = None  # int64 [B], ascending, CPU: each row's image
        self.self_sums: dict[str, Tensor] = {}  # float32 [images, h*w, h*w]
        self.self_counts: dict[str, Tensor] = {}  # int64 [images]

    @contextmanager
    def attached(
        self, network: TappedNetwork, compiled: CompiledNetwork | None = None
    ) -> Iterator[AttentionReader]:
        """Observe every pass of the network inside the block; detach after it, come what may.

        With ``compiled``, every pass of its compiled code.
        """
        heard = [site for site in self.sites if site.reads_text or site in self.self_labels]
        with tapped(network, heard, self._observe, self._begin, compiled):
            yield self

    def self_mean(self, *labels: str, image: int = 0) -> Tensor:
        """Mean image-to-image attention of an image over everything added under those labels."""
        total = sum(self.self_sums[label][image] for label in labels)
        assert isinstance(total, Tensor)
        return total / sum(int(self.self_counts[label][image]) for label in labels)

    def clear(self) -> None:
        """Forget all sums."""
        self.self_sums.clear()
        self.self_counts.clear()

    def _begin(self) -> None:
        self.cross.clear()
        self.queries.clear()

    def _observe(self, site: Site, call: AttentionCall, grid: Size) -> None:
        columns = self.columns
        if columns is None:
            return
        call = call.rows(self.rows)
        if self.text is not None and site.kind == "cross":
            key = cross_keys(site.module, self.text.to(call.query))
            mask = None if self.text_mask is None else self.text_mask[:, None, None]
            call = replace(call, key=key, mask=mask)
        query, key = call.query, call.key
        if self.keep_queries and site.reads_text:
            self.queries[site] = query.float()
        images = query.shape[2] if site.reads_image else 0
        label = self.self_labels.get(site)
        owners = torch.zeros(len(query), dtype=torch.long) if self.owners is None else self.owners
        if label is not None:
            counts = torch.bincount(owners, minlength=self.images)
            self.self_counts[label] = self.self_counts.get(label, 0) + counts
        denominators = None
        if images and call.mask is None and fused.usable(query):
            denominators = fused.log_denominators(query, key, call.scale)
            if label is not None:
                self._add_fused(label, call, denominators, owners)
            # What is left to read are the text's columns of a joint site, which come last.
            call, images, label = replace(call, key=key[:, :, images:]), 0, None
        if not site.reads_text and label is None:
            return
        depth = query.shape[1] if self.per_head else 1
        shape = (len(query), depth, query.shape[2], columns.shape[2])
        maps = torch.empty(shape, device=query.device)
        for batch, rows, heads in _probabilities(call, denominators):
            mean = heads.mean(1, keepdim=True)
            if site.reads_text:
                read = (heads if self.per_head else mean)[..., images:]
                if site.kind == "joint":  # others may follow, or padding be missing
                    read = read[..., : columns.shape[1]]
                maps[batch, :, rows] = read @ columns[batch, None, : read.shape[-1]].to(heads)
            if label is not None:
                total = self._self_total(label, mean, images)
                add_by_owner(total[:, rows], mean[:, 0, :, :images], owners[batch])
        if site.reads_text:
            maps = rearrange(maps, "b heads (h w) n -> b heads n h w", h=grid[0])
            self.cross[site] = maps if self.per_head else maps[:, 0]

    def _add_fused(
        self, label: str, call: AttentionCall, denominators: Tensor, owners: Tensor
    ) -> None:
        """Add the image's columns, which come first, in one go."""
        count = call.query.shape[2]
        total = self._self_total(label, denominators, count)
        images, rows = torch.unique_consecutive(owners, return_counts=True)
        tensors = (call.query, call.key[:, :, :count], denominators)
        parts = [torch.split(tensor, rows.tolist()) for tensor in tensors]
        for image, q, k, sums in zip(images.tolist(), *parts, strict=True):
            fused.add_head_means(total[image], q, k, sums, call.scale)

    def _self_total(self, label: str, like: Tensor, count: int) -> Tensor:
        """The running sums [images, count, count] of that label."""
        if label not in self.self_sums:
            self.self_sums[label] = like.new_zeros(self.images, count, count)
        return self.self_sums[label]


def add_by_owner(totals: Tensor, values: Tensor, owners: Tensor) -> None:
    """totals[owners[i]] += values[i] for owners int64 [B] on the CPU, ascending.

    A matrix product, because scattered additions on a GPU do not repeat to the bit.
    """
    first, last = int(owners[0]), int(owners[-1]) + 1
    if last - first == 1:
        totals[first] += values.sum(0)
        return
    share = (torch.arange(first, last)[:, None] == owners[None]).to(values)
    totals[first:last] += (share @ values.flatten(1)).reshape(-1, *values.shape[1:])


def _probabilities(
    call: AttentionCall, denominators: Tensor | None = None
) -> Iterator[tuple[slice, slice, Tensor]]:
    """softmax(Q K^T / sqrt(d)) (Eq. 4) in pieces that fit the budget.

    Logarithms of the softmax's denominators [B, heads, P] stand for keys that are not given.
    Yields (batch slice, row slice, float32 [b, heads, rows, K]).
    """
    batch, heads, count, _ = call.query.shape
    keys = call.key.shape[2]
    query, key = call.query.float() * call.scale, call.key.float()  # half logits lose digits
    mask = call.mask
    per_row = heads * keys
    rows_at_once = min(count, max(1, _PROBABILITY_BUDGET // per_row))
    items_at_once = max(1, _PROBABILITY_BUDGET // (per_row * count))
    for first in range(0, batch, items_at_once):
        items = slice(first, min(first + items_at_once, batch))
        for start in range(0, count, rows_at_once):
            rows = slice(start, min(start + rows_at_once, count))
            logits = query[items, :, rows] @ key[items].transpose(2, 3)
            if mask is not None:
                own = mask if len(mask) == 1 else mask[items]
                logits = logits + (own if own.shape[2] == 1 else own[:, :, rows]).float()
            if denominators is None:
                yield items, rows, logits.softmax(-1)
            else:
                yield items, rows, (logits - denominators[items, :, rows, None]).exp_()
