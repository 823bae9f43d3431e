"""Observe attention while a network runs.

Nothing is replaced: forward pre-hooks see each attention layer's input, project queries and keys
with the layer's own weights, and keep only what is asked for. The network's own (fused)
attention computes its output, so observing changes no bit of it, whatever processor, adapter or
offloading is installed. (A compiled network runs uncompiled meanwhile, and differs by rounding.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from pixalign.attention import fused
from pixalign.attention.hooks import layer_inputs, watched
from pixalign.attention.sites import Site
from pixalign.core.values import Size

_PROBABILITY_BUDGET = 2**25  # probabilities held at once: 128 MiB of float32


class AttentionReader:
    """Collects head-mean attention of some sites, averaged over a class's text columns.

    Set ``columns``, and ``owners`` where several images are read, before a forward pass; inside
    ``with reader.attached(denoiser)`` every pass leaves each text site's maps in ``cross`` and
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
        self.rows = slice(None)  # rows of the network's batch to read
        self.cross: dict[Site, Tensor] = {}  # of the last pass: float32 [B, (heads,) N, h, w]
        self.queries: dict[Site, Tensor] = {}  # its text sites': float32 [B, heads, h*w, d]
        self.text: Tensor | None = None  # [B, L, D]
        self.text_mask: Tensor | None = None  # [B, L], added to that text's logits
        self.owners: Tensor | None = None  # int64 [B], ascending, CPU: each row's image
        self.self_sums: dict[str, Tensor] = {}  # float32 [images, h*w, h*w]
        self.self_counts: dict[str, Tensor] = {}  # int64 [images]
        self._latent: Size = (0, 0)

    @contextmanager
    def attached(self, denoiser: nn.Module) -> Iterator[AttentionReader]:
        """Observe every pass of the network inside the block; detach after it, come what may."""
        with watched(denoiser, self._start) as hooks:
            for site in self.sites:
                if site.reads_text or site in self.self_labels:
                    observe = partial(self._observe, site)
                    handle = site.module.register_forward_pre_hook(observe, with_kwargs=True)
                    hooks.callback(handle.remove)
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

    def _start(self, latent: Size) -> None:
        self._latent = latent
        self.cross.clear()
        self.queries.clear()

    def _observe(
        self, site: Site, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        columns = self.columns
        if columns is None:
            return
        hidden, encoder, mask = layer_inputs(*args, **kwargs).rows(self.rows)
        if self.text is not None and site.kind == "cross":
            encoder, mask = self.text.to(hidden), self.text_mask
        query, key = queries_and_keys(site.module, hidden, encoder)
        if self.keep_queries and site.reads_text:
            self.queries[site] = query.float()
        images = query.shape[2] if site.reads_image else 0
        label = self.self_labels.get(site)
        owners = torch.zeros(len(query), dtype=torch.long) if self.owners is None else self.owners
        if label is not None:
            counts = torch.bincount(owners, minlength=self.images)
            self.self_counts[label] = self.self_counts.get(label, 0) + counts
        denominators = None
        if label is not None and mask is None and fused.usable(query):
            denominators = self._add_fused(label, site, query, key, owners)
            # What is left to read are the text's columns of a joint site, which come last.
            key, images, label = key[:, :, images:], 0, None
        if not site.reads_text and label is None:
            return
        depth = query.shape[1] if self.per_head else 1
        shape = (len(query), depth, query.shape[2], columns.shape[2])
        maps = torch.empty(shape, device=query.device)
        for batch, rows, heads in _probabilities(site.module, query, key, mask, denominators):
            mean = heads.mean(1, keepdim=True)
            if site.reads_text:
                read = heads if self.per_head else mean
                maps[batch, :, rows] = read[..., images:] @ columns[batch, None].to(heads)
            if label is not None:
                total = self._self_total(label, mean, images)
                add_by_owner(total[:, rows], mean[:, 0, :, :images], owners[batch])
        if site.reads_text:
            height, width = site.grid(self._latent)
            maps = rearrange(maps, "b heads (h w) n -> b heads n h w", h=height, w=width)
            self.cross[site] = maps if self.per_head else maps[:, 0]

    def _add_fused(
        self, label: str, site: Site, query: Tensor, key: Tensor, owners: Tensor
    ) -> Tensor:
        """Add the image's columns, which come first, in one go; gives the log-denominators."""
        scale = float(site.module.scale)  # type: ignore[arg-type]
        count = query.shape[2]
        denominators = fused.log_denominators(query, key, scale)
        total = self._self_total(label, denominators, count)
        images, rows = torch.unique_consecutive(owners, return_counts=True)
        tensors = (query, key[:, :, :count], denominators)
        parts = [torch.split(tensor, rows.tolist()) for tensor in tensors]
        for image, q, k, sums in zip(images.tolist(), *parts, strict=True):
            fused.add_head_means(total[image], q, k, sums, scale)
        return denominators

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


def queries_and_keys(
    module: nn.Module, hidden: Tensor, encoder: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Project an attention layer's input: queries [B, heads, P, d] and keys [B, heads, K, d].

    Queries are those of the image. Keys are the text's for cross-attention, the image's for
    self-attention, and [image; text] for joint attention.
    """
    attn: Any = module
    hidden = image_tokens(attn, hidden)
    query = _projected(attn, hidden, attn.to_q, attn.norm_q)
    if encoder is not None and attn.add_k_proj is None:
        return query, cross_keys(module, encoder)
    key = _projected(attn, hidden, attn.to_k, attn.norm_k)
    if encoder is not None:
        text = _projected(attn, encoder, attn.add_k_proj, attn.norm_added_k)
        key = torch.cat([key, text], dim=2)
    return query, key


def image_tokens(attn: Any, hidden: Tensor) -> Tensor:
    """What a layer projects of its input: [B, P, D], normalised where it does so itself."""
    if hidden.ndim == 4:  # a bare attention block of a UNet
        hidden = hidden.flatten(2).transpose(1, 2)
    if attn.group_norm is not None:
        hidden = attn.group_norm(hidden.transpose(1, 2)).transpose(1, 2)
    return hidden


def text_tokens(attn: Any, text: Tensor) -> Tensor:
    """The same of its text."""
    tokens: Tensor = text if attn.norm_cross is None else attn.norm_encoder_hidden_states(text)
    return tokens


def cross_keys(module: nn.Module, text: Tensor) -> Tensor:
    """The keys [B, heads, L, d] of embeddings [B, L, D] in a cross-attention layer."""
    attn: Any = module
    return _projected(attn, text_tokens(attn, text), attn.to_k, attn.norm_k)


def _projected(attn: Any, tokens: Tensor, projection: Any, norm: Any) -> Tensor:
    split = heads(projection(tokens), attn.heads)
    return split if norm is None else norm(split)


def heads(projected: Tensor, count: int) -> Tensor:
    """Projections [B, P, heads * d] by head: [B, heads, P, d]."""
    return rearrange(projected, "b p (heads d) -> b heads p d", heads=count)


def _probabilities(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    denominators: Tensor | None = None,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """softmax(Q K^T / sqrt(d)) (Eq. 4) in pieces that fit the budget.

    Logarithms of the softmax's denominators [B, heads, P] stand for keys that are not given.
    Yields (batch slice, row slice, float32 [b, heads, rows, K]).
    """
    attn: Any = module
    batch, heads, count, _ = query.shape
    keys = key.shape[2]
    query, key = query.float() * attn.scale, key.float()  # half-precision logits lose digits
    per_row = heads * keys
    rows_at_once = min(count, max(1, _PROBABILITY_BUDGET // per_row))
    items_at_once = max(1, _PROBABILITY_BUDGET // (per_row * count))
    for first in range(0, batch, items_at_once):
        items = slice(first, min(first + items_at_once, batch))
        for start in range(0, count, rows_at_once):
            rows = slice(start, min(start + rows_at_once, count))
            logits = query[items, :, rows] @ key[items].transpose(2, 3)
            if mask is not None:
                logits = logits + mask[items].reshape(logits.shape[0], 1, -1, keys).float()
            if denominators is None:
                yield items, rows, logits.softmax(-1)
            else:
                yield items, rows, (logits - denominators[items, :, rows, None]).exp_()
