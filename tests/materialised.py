"""Every attention layer of one forward of a UNet, head by head, by processors of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from released import grid, predict

Text = tuple[Tensor, Tensor | None]


@dataclass
class Layer:
    """One attention layer in one forward."""

    place: str  # down, mid or up
    factor: int
    size: tuple[int, int]
    text: bool
    heads: Tensor  # probabilities [heads, P, K]
    query: Tensor  # [heads, P, d]
    attn: Any


@dataclass
class Recorder:
    """Attention with explicit probabilities, kept head by head."""

    name: str
    kept: list[tuple[str, bool, Tensor, Tensor, Any]]

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Tensor:
        assert hidden_states.shape[0] == 1
        assert attention_mask is None
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            split(x[0], attn.heads)
            for x in (attn.to_q(hidden_states), attn.to_k(source), attn.to_v(source))
        )
        heads = torch.softmax(query @ key.transpose(1, 2) * attn.scale, dim=-1)
        self.kept.append((self.name, encoder_hidden_states is not None, heads, query, attn))
        output = (heads @ value).permute(1, 0, 2).reshape(1, hidden_states.shape[1], -1)
        return attn.to_out[1](attn.to_out[0](output))


def split(x: Tensor, heads: int) -> Tensor:
    """[P, heads * D] to [heads, P, D]."""
    return x.reshape(x.shape[0], heads, -1).permute(1, 0, 2)


def observe(pipe: Any, z: Tensor, index: int, text: Text, pixel: tuple[int, int]) -> list[Layer]:
    """All layers of one conditional forward at training step `index`."""
    kept: list[tuple[str, bool, Tensor, Tensor, Any]] = []
    stock = dict(pipe.unet.attn_processors)
    pipe.unet.set_attn_processor({name: Recorder(name, kept) for name in stock})
    try:
        predict(pipe, z, torch.tensor([index]), text, pixel)
    finally:
        pipe.unet.set_attn_processor(dict(stock))
    found = []
    for name, reads_text, heads, query, attn in kept:
        size = grid(pipe, heads.shape[1], (z.shape[2], z.shape[3]))
        place = name.split("_")[0]
        found.append(Layer(place, z.shape[2] // size[0], size, reads_text, heads, query, attn))
    return found


def projected(attn: Any, hidden: Tensor, text: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries of the image and keys [B, heads, tokens, d] of what it attends to, by the weights."""

    def part(tokens: Tensor, layer: Any, norm: Any) -> Tensor:
        heads = layer(tokens).unflatten(2, (attn.heads, -1)).transpose(1, 2)
        return heads if norm is None else norm(heads)

    joint = text is not None and attn.add_k_proj is not None
    query = part(hidden, attn.to_q, attn.norm_q)
    key = part(hidden if text is None or joint else text, attn.to_k, attn.norm_k)
    if joint:
        key = torch.cat([key, part(text, attn.add_k_proj, attn.norm_added_k)], dim=2)
    return query, key
