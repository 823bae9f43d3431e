"""What a layer computes, told from its inputs and weights: for processors that make no call.

diffusers' `AttnProcessor` and `SlicedAttnProcessor` multiply matrices themselves; the layer's own
projections say what they multiply. Also the keys of a text that the network is not shown.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from einops import rearrange
from torch import Tensor, nn

from pixalign.core.values import AttentionCall

KNOWN = ("AttnProcessor", "SlicedAttnProcessor")


class LayerInputs(NamedTuple):
    """Hidden states, text and mask with which an attention layer is called."""

    hidden: Tensor
    text: Tensor | None
    mask: Tensor | None


def layer_inputs(
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    **_: object,
) -> LayerInputs:
    """The arguments of an attention layer of diffusers."""
    return LayerInputs(hidden_states, encoder_hidden_states, attention_mask)


def check_known(module: nn.Module) -> None:
    """Raise a RuntimeError unless the layer's processor is one of those that make no call."""
    processor = type(getattr(module, "processor", None)).__name__
    if processor not in KNOWN:
        raise RuntimeError(
            f"the attention of {type(module).__name__} with {processor} cannot be read: it calls "
            "neither scaled_dot_product_attention nor a backend of diffusers; give it a standard "
            "processor, with pipe.unet.set_default_attn_processor() for instance"
        )


def attention_call(module: nn.Module, inputs: LayerInputs) -> AttentionCall:
    """The call that the layer's processor is as good as."""
    attn: Any = module
    tokens = _image_tokens(attn, inputs.hidden)
    source = tokens if inputs.text is None else text_tokens(attn, inputs.text)
    query, key, value = (
        _heads(projection(part), attn.heads)
        for projection, part in ((attn.to_q, tokens), (attn.to_k, source), (attn.to_v, source))
    )
    if attn.norm_q is not None:
        query, key = attn.norm_q(query), attn.norm_k(key)
    mask = inputs.mask
    if mask is not None:
        mask = mask.reshape(len(query), 1, -1, key.shape[2]).to(query.dtype)
    return AttentionCall(query, key, value, mask, float(attn.scale))


def written(
    module: nn.Module, inputs: LayerInputs, output: Tensor, rows: Tensor, new: Tensor
) -> Tensor:
    """The layer's output [B, P, D] with what it makes of attention outputs [n, heads, P, d]."""
    attn: Any = module
    hidden = inputs.hidden[rows]
    made = rearrange(new, "b heads p d -> b p (heads d)").to(output.dtype)
    for layer in attn.to_out:
        made = layer(made)
    if hidden.ndim == 4:
        made = made.transpose(1, 2).reshape(hidden.shape)
    if attn.residual_connection:
        made = made + hidden
    made = made / attn.rescale_output_factor
    return output.clone().index_copy_(0, rows, made)  # a clone keeps the memory's layout


def cross_keys(module: nn.Module, text: Tensor) -> Tensor:
    """The keys [B, heads, L, d] of embeddings [B, L, D] in a cross-attention layer."""
    attn: Any = module
    keys = _heads(attn.to_k(text_tokens(attn, text)), attn.heads)
    return keys if attn.norm_k is None else attn.norm_k(keys)


def text_tokens(attn: Any, text: Tensor) -> Tensor:
    """What a layer projects of its text."""
    tokens: Tensor = text if attn.norm_cross is None else attn.norm_encoder_hidden_states(text)
    return tokens


def _image_tokens(attn: Any, hidden: Tensor) -> Tensor:
    """What a layer projects of its input: [B, P, D], normalised where it does so itself."""
    if hidden.ndim == 4:  # a bare attention block of a UNet
        hidden = hidden.flatten(2).transpose(1, 2)
    if attn.group_norm is not None:
        hidden = attn.group_norm(hidden.transpose(1, 2)).transpose(1, 2)
    return hidden


def _heads(projected: Tensor, count: int) -> Tensor:
    """Projections [B, P, heads * d] by head: [B, heads, P, d]."""
    return rearrange(projected, "b p (heads d) -> b heads p d", heads=count)
