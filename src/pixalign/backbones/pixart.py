"""PixArt: a transformer whose cross-attention reads T5, told by index like Stable Diffusion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from pixalign.backbones.discrete import DiscreteBackbone
from pixalign.backbones.transformer import CROSS, Transformer
from pixalign.core.values import TextCondition
from pixalign.text.streams import TextStream


class PixArt(Transformer, DiscreteBackbone):
    """PixArt-alpha, whose network is told the picture's size at 1024 pixels, and PixArt-Sigma."""

    family = "pixart"
    description = "PixArt-alpha and PixArt-Sigma (cross-attention, epsilon, T5)"
    examples = ("PixArt-alpha/PixArt-XL-2-1024-MS", "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS")
    transformer = "PixArtTransformer2DModel"
    layers = {"transformer_blocks": CROSS}  # noqa: RUF012
    arguments = ("hidden_states", "encoder_hidden_states", "timestep", "added_cond_kwargs")
    guidance = 4.5

    def __init__(self, pipe: Any, name: str = "") -> None:
        self.patch = int(pipe.transformer.config.patch_size)
        super().__init__(pipe, name)

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """Its transformer, which older folders call by another class that reads T5."""
        older = ("Transformer2DModel", "T5EncoderModel")
        parts = components.get("transformer"), components.get("text_encoder")
        return super().recognises(components) or parts == older

    def check_encoding(self, prompts: Sequence[str], given: Mapping[str, Any]) -> None:
        check_unchanged(self.pipe, prompts, given)

    def _streams(self) -> tuple[TextStream, ...]:
        limit = usual(type(self.pipe).encode_prompt, "max_sequence_length")
        return (TextStream("t5", self.pipe.tokenizer, 0, limit, lower=True),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, mask, *_ = self.pipe.encode_prompt(prompts, False, device=self.device)
        return TextCondition(embeds, mask=mask.bool())

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        added: dict[str, Tensor | None] = {"resolution": None, "aspect_ratio": None}
        if self.denoiser.use_additional_conditions:
            height, width = (side * self.vae_factor for side in z.shape[-2:])
            numbers = z.new_tensor([[height, width, height / width]]).expand(len(z), -1)
            added = {"resolution": numbers[:, :2], "aspect_ratio": numbers[:, 2:]}
        return {
            "hidden_states": z,
            "timestep": time.long(),
            "encoder_hidden_states": text.embeds,
            "encoder_attention_mask": text.mask,
            "added_cond_kwargs": added,
        }

    def _output(self, output: Any, z: Tensor) -> Tensor:
        """The estimate of the noise; that of its variance follows it, where the network has one."""
        return super()._output(output, z)[:, : z.shape[1]]


def usual(function: Callable[..., Any], argument: str) -> Any:
    """What a function takes for an argument unless it is told otherwise."""
    return inspect.signature(function).parameters[argument].default


def check_unchanged(pipe: Any, prompts: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise a ValueError where a pipeline that is called so cleans more from a prompt than case."""
    for prompt in prompts:
        (shown,) = pipe._text_preprocessing(prompt, given.get("clean_caption", False))
        if shown != prompt.lower().strip():
            raise ValueError(
                f"the pipeline cleans {prompt!r} to {shown!r}, so that its words stand elsewhere; "
                "call it with the latter, or with clean_caption=False"
            )
