"""Z-Image: one stream of picture and text, each padded to a multiple of 32, told 1 - t."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pixalign.backbones.transformer import FlowTransformer, chat
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream

LENGTH = 512  # what the pipeline reads unless told otherwise
MULTIPLE = 32


class ZImage(FlowTransformer):
    """Z-Image and its distilled Turbo."""

    family = "z-image"
    description = "Z-Image and Z-Image Turbo (one stream, flow, Qwen3)"
    examples = ("Tongyi-MAI/Z-Image-Turbo",)
    arguments = ("x", "t", "cap_feats")
    text_argument = "cap_feats"
    time_argument = "t"
    transformer = "ZImageTransformer2DModel"
    layers = {"layers": {"attention": "joint"}}  # noqa: RUF012
    packed = False
    guidance = 5.0

    def _streams(self) -> tuple[TextStream, ...]:
        tokenizer = self.pipe.tokenizer
        template = chat(tokenizer, add_generation_prompt=True, enable_thinking=True)
        return (TextStream("llm", tokenizer, 0, LENGTH, before=template[0], after=template[1]),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"do_classifier_free_guidance": False, "max_sequence_length": LENGTH}
        rows, _ = self.pipe.encode_prompt(list(prompts), self.device, **how)  # it writes into lists
        mask = pad_sequence([row.new_ones(len(row), dtype=torch.bool) for row in rows], True)
        return TextCondition(pad_sequence(rows, batch_first=True), mask=mask)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        assert text.mask is not None
        return {
            "x": list(z[:, :, None].unbind(0)),
            "t": 1 - time / 1000,
            "cap_feats": [row[mask] for row, mask in zip(text.embeds, text.mask, strict=True)],
        }

    def _output(self, output: Any, z: Tensor) -> Tensor:
        """The network estimates the way to the picture."""
        return -torch.stack(list(output))[:, :, 0]

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        height, width = named["x"][0].shape[-2:]
        return height, width

    def order(self, latent: Size, text: int) -> Tensor:
        """The picture's tokens and their padding, then the text's and its padding."""
        image, padded = self.tokens(latent), _padded(self.tokens(latent))
        places = torch.arange(padded + _padded(text))
        return torch.cat([places[:image], places[padded:], places[image:padded]])


def _padded(tokens: int) -> int:
    return tokens + -tokens % MULTIPLE
