"""The small immutable values that flow between the rooms of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

Size = tuple[int, int]  # (height, width), in this order everywhere


@dataclass(frozen=True)
class Phrase:
    """A class and the words that describe it in this image.

    ``Phrase("dog", "a golden dog")`` is reported as "dog"; the model reads "a golden dog".
    """

    name: str
    phrase: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "phrase", self.phrase or self.name)


@dataclass(frozen=True)
class TokenSpans:
    """Where the classes stand in one encoded prompt.

    ``columns[i]`` holds the text columns of class ``classes[i]`` (an index into the caller's
    list) in a cross-attention map with ``length`` columns.
    """

    prompt: str
    classes: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    length: int

    def averaging_matrix(self, class_count: int) -> Tensor:
        """[length, class_count]: a map times this is the mean of each class's columns, or 0."""
        matrix = torch.zeros(self.length, class_count)
        for index, columns in zip(self.classes, self.columns, strict=True):
            matrix[list(columns), index] = 1 / max(1, len(columns))
        return matrix


@dataclass(frozen=True)
class Layers:
    """A network's text-reading layers, in the order in which it runs them.

    One side of layer l's cells covers ``factors[l]`` latent positions; ``names[l]`` is such as
    "up-4-2", the second layer on the way up with factor 4; ``middle`` is the (fractional) index
    of the middle layer.
    """

    names: tuple[str, ...]
    factors: tuple[int, ...]
    middle: float

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class AttentionMaps:
    """What one image's collecting passes leave behind, averaged over heads and timesteps.

    ``cross[l]`` is layer l's map of every class, float32 [N, h_l, w_l]. ``self_attention`` are
    float32 [h*w, h*w] matrices over ``grid``, to be applied in order.
    """

    cross: tuple[Tensor, ...]
    layers: Layers
    self_attention: tuple[Tensor, ...]
    grid: Size


@dataclass(frozen=True)
class Scores:
    """The semantic strength of each class (Eq. 5): all float32.

    ``losses`` [N, T] is the mean squared epsilon-error, ``elbo`` [N] its weighted mean over
    the timesteps, ``scores`` [N] lies in [gamma, 1].
    """

    losses: Tensor
    elbo: Tensor
    scores: Tensor
    timesteps: tuple[float, ...]

    def __getitem__(self, classes: list[int]) -> Scores:
        """Those of some classes."""
        losses, elbo, scores = (x[classes] for x in (self.losses, self.elbo, self.scores))
        return Scores(losses, elbo, scores, self.timesteps)

    @classmethod
    def neutral(cls, class_count: int) -> Scores:
        """The scores of an uncalibrated alignment: every class keeps its map."""
        losses, scores = torch.empty(class_count, 0), torch.ones(class_count)
        return cls(losses, elbo=scores * torch.nan, scores=scores, timesteps=())


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the texts of N classes change at every latent position, float32 [N, h, w].

    With r what the network misses under the empty text and d_i what class i's text adds to its
    estimate, ``projection`` is the mean over timesteps of r d_i, ``energy`` of d_i^2, both in parts
    of the mean of r^2. The squared error under class i is r^2 - 2 projection + energy, so for
    comparing classes these two are all that there is.
    """

    projection: Tensor
    energy: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[Evidence]) -> Evidence:
        """That of all classes, measured under the same noise or not."""
        return cls(*(torch.cat([getattr(x, f) for x in parts]) for f in ("projection", "energy")))


@dataclass(frozen=True)
class TextCondition:
    """Encoded prompts: ``embeds`` [P, L, D] and, on families that use it, ``pooled`` [P, D'].

    ``mask`` bool [P, L] says which columns hold a prompt's tokens, where that differs; ``extra``
    are further tensors [P, ...] by name that a family's network is shown.
    """

    embeds: Tensor
    pooled: Tensor | None = None
    mask: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.embeds)

    def __getitem__(self, rows: Tensor) -> TextCondition:
        return self.map(lambda part: part[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> TextCondition:
        """The same with every tensor changed."""
        pooled, mask = (None if x is None else change(x) for x in (self.pooled, self.mask))
        extra = {name: change(part) for name, part in self.extra.items()}
        return TextCondition(change(self.embeds), pooled, mask, extra)

    def repeated(self, count: int) -> TextCondition:
        """The one prompt, ``count`` times."""
        return self[torch.zeros(count, dtype=torch.long, device=self.embeds.device)]

    @classmethod
    def concatenate(cls, parts: Sequence[TextCondition]) -> TextCondition:
        """All prompts of the parts, in order; shorter ones are filled up with zeros."""

        def joined(tensors: Iterable[Tensor | None]) -> Tensor | None:
            there = [tensor for tensor in tensors if tensor is not None]
            if not there:
                return None
            longest = max(tensor.shape[1] for tensor in there)
            filled = [
                pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, longest - tensor.shape[1]))
                for tensor in there
            ]
            return torch.cat(filled)

        embeds, pooled, mask = (
            joined(getattr(part, name) for part in parts) for name in ("embeds", "pooled", "mask")
        )
        extra = {name: joined(part.extra[name] for part in parts) for name in parts[0].extra}
        assert embeds is not None
        return cls(embeds, pooled, mask, {k: x for k, x in extra.items() if x is not None})


@dataclass(frozen=True)
class AttentionCall:
    """What an attention layer computes of a batch: softmax(scale q k^T + mask) v.

    ``query`` [B, heads, Q, d], ``key`` and ``value`` [B, heads, K, d]; ``mask``, added to the
    logits, has their shape or 1 where it is the same for all.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> AttentionCall:
        """From the arguments of torch's scaled_dot_product_attention."""
        if is_causal:
            raise ValueError("causal attention has no maps of a picture")
        if key.shape[1] != query.shape[1]:  # heads in groups share keys and values
            many = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(many, 1) for x in (key, value))
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                hidden = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
                attn_mask = hidden.masked_fill(~attn_mask, -torch.inf)
            attn_mask = attn_mask.expand(*(1,) * (4 - attn_mask.ndim), *attn_mask.shape)
        width = query.shape[-1]
        return cls(query, key, value, attn_mask, width**-0.5 if scale is None else scale)

    @classmethod
    def of_backend(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        **options: Any,
    ) -> AttentionCall:
        """From the arguments of one of diffusers' attention backends: [B, tokens, heads, d]."""
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        mask = attn_mask if isinstance(attn_mask, Tensor) else None
        known = {name: options[name] for name in ("is_causal", "scale") if name in options}
        return cls.of(query, key, value, mask, **known)

    def rows(self, rows: Tensor | slice) -> AttentionCall:
        """Some rows of the batch."""
        mask = self.mask
        mask = mask if mask is None or len(mask) == 1 else mask[rows]
        return AttentionCall(self.query[rows], self.key[rows], self.value[rows], mask, self.scale)

    def of_picture(self, order: Tensor | None, cells: int) -> AttentionCall:
        """A joint layer's call for its picture's queries, over keys in `NetworkCall.order`."""
        mask = self.mask
        if mask is not None and mask.shape[2] > 1:
            mask = _taken(mask, order if order is None else order[..., :cells], 2)[:, :, :cells]
        return AttentionCall(
            _taken(self.query, order if order is None else order[..., :cells], 2)[:, :, :cells],
            _taken(self.key, order, 2),
            _taken(self.value, order, 2),
            mask if mask is None else _taken(mask, order, 3),
            self.scale,
        )


def _taken(tokens: Tensor, order: Tensor | None, dim: int) -> Tensor:
    """Tokens [B, heads, .., ..] along a dimension in an order [n], or [B, n] of their own."""
    if order is None:
        return tokens
    if order.ndim == 1:
        return tokens.index_select(dim, order)
    shape = [*tokens.shape]
    shape[0], shape[dim] = order.shape
    each = order.reshape(len(order), 1, *(-1 if d == dim else 1 for d in (2, 3)))
    return tokens.expand(len(order), -1, -1, -1).gather(dim, each.expand(shape))


@dataclass(frozen=True)
class NetworkCall:
    """What a call of a network, ours or a pipeline's, has to do with its picture and its text.

    ``latent`` is the (height, width) that layers' factors count. ``texts`` are the embeddings of
    each row of the batch, ``time`` is what the network is told. ``order`` int64 [tokens] or
    [batch, tokens] says where a joint layer has the tokens of the picture, then those of the text,
    then any others; None where they stand in that order. A video's ``frames`` stand below one
    another in the latent's height; None is a picture.
    """

    latent: Size
    texts: Sequence[Tensor]
    time: float
    order: Tensor | None = None
    frames: int | None = None
