"""Two CLIP text towers of one layer, as XL and 3 read them: the states before the last layer.

With one layer these are the words and their places alone, which is what lets attention find the
objects (see docs/lab.md); the layer serves the pooled vector. Both towers together begin with the
words that sd1 has learnt, each with some of their numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from transformers import CLIPTextModelWithProjection

from lab.families.base import Parts
from lab.networks import text_config
from lab.recipe import Recipe

NAMES = ("text_encoder", "text_encoder_2")
WORDS, PLACES = "token_embedding.weight", "position_embedding.weight"


def build_towers(recipe: Recipe, tokenizer: Any, first: Any) -> dict[str, nn.Module]:
    """Both towers: one of the class ``first``, and one with a projection."""
    towers, kinds = {}, (first, CLIPTextModelWithProjection)
    for name, kind, width in zip(NAMES, kinds, recipe["widths"], strict=True):
        sizes = {"hidden": width, "layers": 1, "heads": recipe["heads"], "inner": width}
        towers[name] = kind(text_config(sizes, tokenizer))
    return towers


def read_towers(parts: Parts, ids: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """States [B, L, D + D'] side by side, and the pooled vectors of the towers that have one."""
    first, second = (parts[name](ids, output_hidden_states=True) for name in NAMES)
    states = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)
    return states, getattr(first, "text_embeds", None), second.text_embeds


@torch.no_grad()
def inherit_words(parts: Parts, donor: Any) -> None:
    """Split what the donor's encoder without layers makes of each word and place.

    It normalises their sum; the towers' states before the last layer are not normalised, so
    words are normalised here, and places brought to the same measure.
    """
    words, places = named_tensor(donor, WORDS), named_tensor(donor, PLACES)
    gain = named_tensor(donor, "final_layer_norm.weight")
    spread = (words.var(1, unbiased=False) + donor.config.layer_norm_eps).sqrt().mean()
    found = {
        WORDS: normalised_words(donor),
        PLACES: (places - places.mean(1, keepdim=True)) / spread * gain,
    }
    towers: list[Any] = [parts[name] for name in NAMES]
    wide: int = sum(tower.config.hidden_size for tower in towers)
    if wide != words.shape[1]:
        raise ValueError(f"both towers are {wide} wide, the donor's words {words.shape[1]}")
    begin = 0
    for tower in towers:
        for end, values in found.items():
            tensor = named_tensor(tower, end)
            if values.shape[0] != tensor.shape[0]:
                raise ValueError(f"the donor knows {len(values)} of them, not {len(tensor)}: {end}")
            tensor.copy_(values[:, begin : begin + tensor.shape[1]])
        begin += tensor.shape[1]


def normalised_words(encoder: Any) -> Tensor:
    """Each word [V, D] as an encoder without layers normalises it."""
    weight, bias = (
        named_tensor(encoder, f"final_layer_norm.{name}") for name in ("weight", "bias")
    )
    words = named_tensor(encoder, WORDS)
    return layer_norm(words, words.shape[1:], weight, bias, encoder.config.layer_norm_eps)


def named_tensor(encoder: Any, end: str) -> Tensor:
    """By the end of its name: transformers renamed the outer module between versions."""
    tensors: dict[str, Tensor] = encoder.state_dict()
    return next(tensor for name, tensor in tensors.items() if name.endswith(end))
