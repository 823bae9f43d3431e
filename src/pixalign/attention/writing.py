"""Write attention while a network runs.

Nothing is replaced: forward hooks see each attention layer's input and output, attend anew for
some rows with the layer's own weights, and put these rows in the place of the network's. All other
rows keep what the network computed, to the bit, and where nothing is to be written nothing is
computed. (A compiled network runs uncompiled meanwhile, as it does while it is observed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pixalign.attention.hooks import LayerInputs, layer_inputs, watched
from pixalign.attention.reading import heads, image_tokens, queries_and_keys, text_tokens
from pixalign.attention.sites import Site
from pixalign.core.values import Size

# (sources' probabilities, targets', the layer's grid) to the targets' new ones: all float32
# [n, heads, h*w, L], which need not sum to 1.
TextEdit = Callable[[Tensor, Tensor, Size], Tensor]


class AttentionWriter:
    """Lets some rows of a network's batch, the targets, attend otherwise than they would.

    Before a pass set ``sources`` and ``targets``, int64 [n]: rows of its batch, in pairs. Inside
    ``with writer.attached(denoiser)`` a target attends to its text as ``edit`` says, and at the
    sites in ``replaced`` to the image as its source does, over values of its own.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = tuple(sites)
        self.sources = self.targets = torch.empty(0, dtype=torch.long)
        self.edit: TextEdit | None = None
        self.replaced: frozenset[Site] = frozenset()
        self._latent: Size = (0, 0)

    @contextmanager
    def attached(self, denoiser: nn.Module) -> Iterator[AttentionWriter]:
        """Write in every pass of the network inside the block; detach after it, come what may."""
        with watched(denoiser, self._start) as hooks:
            for site in self.sites:
                write = partial(self._write, site)
                handle = site.module.register_forward_hook(write, with_kwargs=True)
                hooks.callback(handle.remove)
            yield self

    def _start(self, latent: Size) -> None:
        self._latent = latent

    def _write(
        self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Any:
        text = site.reads_text and self.edit is not None
        image = site.reads_image and site in self.replaced
        if not len(self.targets) or not (text or image):
            return None
        hidden = out[0] if isinstance(out, tuple) else out
        inputs = layer_inputs(*args, **kwargs)
        rows = self.targets.to(hidden.device)
        sources, targets = inputs.rows(self.sources.to(hidden.device)), inputs.rows(rows)
        attended = self._attended(site, sources, targets)
        new = _projected(module, attended, targets.hidden).to(hidden.dtype)
        # A clone keeps the memory's layout, by which later layers round the other rows.
        written = hidden.clone().index_copy_(0, rows, new)
        return (written, *out[1:]) if isinstance(out, tuple) else written

    def _attended(self, site: Site, sources: LayerInputs, targets: LayerInputs) -> Tensor:
        """The targets' new attention output [n, heads, P, d]."""
        value = _values(site.module, targets.hidden, targets.text)
        source = _Look.of(site, sources)
        if site.kind == "self":
            return source.attend(value)
        target = _Look.of(site, targets)
        images = target.query.shape[2] if site.kind == "joint" else 0
        before, own = source.text_probabilities(images), target.text_probabilities(images)
        edited = own if self.edit is None else self.edit(before, own, site.grid(self._latent))
        new = edited @ value[:, :, images:].to(own)
        if images:
            look, text = (source, before) if site in self.replaced else (target, own)
            rest = 1 - text.sum(-1, keepdim=True)
            image = replace(look, key=look.key[:, :, :images])
            new = new + rest * image.attend(value[:, :, :images])
        return new


@dataclass(frozen=True)
class _Look:
    """How some rows look at something: queries [n, heads, P, d] and keys [n, heads, K, d].

    Keys are the image's, the text's or, at joint sites, [image; text]. A mask is added to the
    logits; joint sites know none.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float

    @classmethod
    def of(cls, site: Site, inputs: LayerInputs) -> _Look:
        """What a site's own weights make of its input."""
        query, key = queries_and_keys(site.module, inputs.hidden, inputs.text)
        mask = None if site.kind == "joint" else inputs.mask
        if mask is not None:
            mask = mask.reshape(len(query), 1, -1, key.shape[2]).to(query.dtype)
        return cls(query, key, mask, float(site.module.scale))  # type: ignore[arg-type]

    def attend(self, value: Tensor) -> Tensor:
        """softmax(Q K^T / sqrt(d)) V, without the matrix in between."""
        return scaled_dot_product_attention(
            self.query, self.key, value, self.mask, scale=self.scale
        )

    def text_probabilities(self, images: int) -> Tensor:
        """float32 [n, heads, P, L]: attention to the keys behind the first ``images``.

        Where there are such, the text's share of the attention is itself an attention output, over
        values that are 1 for text: no matrix over the image is needed.
        """
        wide = torch.promote_types(self.query.dtype, torch.float32)
        query, key = self.query.to(wide), self.key.to(wide)  # half-precision logits lose digits
        logits = (query * self.scale) @ key[:, :, images:].transpose(2, 3)
        if self.mask is not None:
            logits = logits + self.mask
        if not images:
            return logits.softmax(-1)
        is_text = torch.zeros_like(key)
        is_text[:, :, images:] = 1
        share = scaled_dot_product_attention(query, key, is_text, scale=self.scale)
        return share[..., :1] * logits.softmax(-1)


def _values(module: nn.Module, hidden: Tensor, encoder: Tensor | None) -> Tensor:
    """Values [B, heads, K, d] that belong to the keys of `queries_and_keys`."""
    attn: Any = module
    hidden = image_tokens(attn, hidden)
    if encoder is None:
        return heads(attn.to_v(hidden), attn.heads)
    if attn.add_v_proj is not None:
        parts = [attn.to_v(hidden), attn.add_v_proj(encoder)]
        return torch.cat([heads(part, attn.heads) for part in parts], dim=2)
    return heads(attn.to_v(text_tokens(attn, encoder)), attn.heads)


def _projected(module: nn.Module, attended: Tensor, hidden: Tensor) -> Tensor:
    """What the layer makes of an attention output [n, heads, P, d], given its input's rows."""
    attn: Any = module
    output = rearrange(attended, "b heads p d -> b p (heads d)").to(hidden.dtype)
    for layer in attn.to_out:
        output = layer(output)
    if hidden.ndim == 4:
        output = output.transpose(1, 2).reshape(hidden.shape)
    if attn.residual_connection:
        output = output + hidden
    projected: Tensor = output / attn.rescale_output_factor
    return projected
