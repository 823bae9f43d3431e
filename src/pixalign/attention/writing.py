"""Write attention while a network runs: some rows of a layer's output are computed anew.

All other rows keep what the network computed, to the bit, and where nothing is to be written
nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pixalign.attention.sites import Site
from pixalign.attention.tap import tapped
from pixalign.core.protocols import TappedNetwork
from pixalign.core.values import AttentionCall, Size

# (sources' probabilities, targets', the layer's grid) to the targets' new ones: all float32
# [n, heads, h*w, L], which need not sum to 1.
TextEdit = Callable[[Tensor, Tensor, Size], Tensor]


class AttentionWriter:
    """Lets some rows of a network's batch, the targets, attend otherwise than they would.

    Before a pass set ``sources`` and ``targets``, int64 [n]: rows of its batch, in pairs. Inside
    ``with writer.attached(network)`` a target attends to its text as ``edit`` says, and at the
    sites in ``replaced`` to the image as its source does, over values of its own.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.sources = self.targets = torch.empty(0, dtype=torch.long)
        self.edit: TextEdit | None = None
        self.replaced: frozenset[Site] = frozenset()

    def attached(self, network: TappedNetwork) -> AbstractContextManager[None]:
        """Write in every pass of the network inside the block; detach after it, come what may."""
        return tapped(network, self.sites, self._write)

    def _write(self, site: Site, call: AttentionCall, grid: Size) -> tuple[Tensor, Tensor] | None:
        """The targets, and their new attention output [n, heads, h*w, d]."""
        text = site.reads_text and self.edit is not None
        image = site.reads_image and site in self.replaced
        if not len(self.targets) or not (text or image):
            return None
        rows = self.targets.to(call.query.device)
        source, target = call.rows(self.sources.to(rows.device)), call.rows(rows)
        if site.kind == "self":
            return rows, attend(source, target.value)
        images = grid[0] * grid[1] if site.kind == "joint" else 0
        before, own = text_probabilities(source, images), text_probabilities(target, images)
        edited = own if self.edit is None else self.edit(before, own, grid)
        new = edited @ target.value[:, :, images:].to(own)
        if images:
            look, shown = (source, before) if site in self.replaced else (target, own)
            rest = 1 - shown.sum(-1, keepdim=True)
            mask = None if look.mask is None else look.mask[..., :images]
            picture = replace(look, key=look.key[:, :, :images], mask=mask)
            new = new + rest * attend(picture, target.value[:, :, :images])
        return rows, new


def attend(call: AttentionCall, value: Tensor) -> Tensor:
    """softmax(scale q k^T + mask) over other values, without the matrix in between."""
    return scaled_dot_product_attention(call.query, call.key, value, call.mask, scale=call.scale)


def text_probabilities(call: AttentionCall, images: int) -> Tensor:
    """float32 [n, heads, P, L]: attention to the keys behind the first ``images``.

    Where there are such, the text's share of the attention is itself an attention output, over
    values that are 1 for text: no matrix over the image is needed.
    """
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query, key = call.query.to(wide), call.key.to(wide)  # half-precision logits lose digits
    mask = None if call.mask is None else call.mask.to(wide)
    logits = (query * call.scale) @ key[:, :, images:].transpose(2, 3)
    if mask is not None:
        logits = logits + mask[..., images:]
    if not images:
        return logits.softmax(-1)
    is_text = torch.zeros_like(key)
    is_text[:, :, images:] = 1
    share = attend(replace(call, query=query, key=key, mask=mask), is_text)
    return share[..., :1] * logits.softmax(-1)
