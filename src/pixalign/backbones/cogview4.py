"""CogView4: joint attention, GLM's text whose padding is read, told noise before it is shifted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from pixalign.backbones.transformer import FlowTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import Schedule
from pixalign.text.streams import TextStream

LENGTH = 1024  # what the pipeline reads unless told otherwise
MULTIPLE = 16
_BENDING = (
    "shift_terminal", "invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas",
    "use_beta_sigmas",
)  # fmt: skip


class CogView4(FlowTransformer):
    """CogView4.

    A prompt is padded in front to a multiple of 16 tokens, and the network reads the padding. So
    each is encoded by itself, and what a longer one has more of is hidden from the network.
    """

    family = "cogview4"
    description = "CogView4 (joint attention, flow, GLM)"
    examples = ("zai-org/CogView4-6B",)
    transformer = "CogView4Transformer2DModel"
    layers = {"transformer_blocks": {"attn1": "joint"}}  # noqa: RUF012
    packed = False
    guidance = 5.0

    @cached_property
    def schedule(self) -> Schedule:
        bent = [name for name in _BENDING if self.pipe.scheduler.config.get(name)]
        if bent:
            raise ValueError(
                f"the scheduler has {' and '.join(bent)}; CogView4 is told noise levels as they "
                "are before a plain shift, so use the model's own scheduler"
            )
        return super().schedule

    def sigmas(self, steps: int) -> np.ndarray:
        """Those of evenly spaced training steps, rounded down."""
        length = self.schedule.length
        return np.linspace(length, 1, max(1, steps)).astype(np.int64) / length

    def shift(self, latent: Size, steps: int) -> float | None:
        config = self.pipe.scheduler.config
        if not config.get("use_dynamic_shifting"):
            return None
        sides = math.sqrt(self.tokens(latent) / config.get("base_image_seq_len", 256))
        return float(sides * config.get("max_shift", 0.75) + config.get("base_shift", 0.25))

    def unshifted(self, time: Tensor, latent: Size) -> Tensor:
        """What the network is told at 1000 times a noise level: f s / (1 + (f - 1) s), solved."""
        config, length = self.pipe.scheduler.config, self.schedule.length
        factor = self.shift(latent, 1)
        if factor is None:
            factor = config.get("shift", 1.0)
        elif config.get("time_shift_type") != "linear":
            factor = math.exp(factor)
        return time / (factor - (factor - 1) * time / length)

    def _streams(self) -> tuple[TextStream, ...]:
        return (TextStream("llm", self.pipe.tokenizer, 0, LENGTH, lead=_padding),)

    def call_streams(self, length: int) -> tuple[TextStream, ...]:
        """The pipeline pads the prompts of a call together: all end in the last column."""
        return tuple(replace(s, lead=lambda tokens: max(0, length - tokens)) for s in self.streams)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"do_classifier_free_guidance": False, "device": self.device}
        rows = [self.pipe.encode_prompt(prompt, **how)[0] for prompt in prompts]
        masks = [row.new_ones(row.shape[:2], dtype=torch.bool) for row in rows]
        parts = [TextCondition(row, mask=mask) for row, mask in zip(rows, masks, strict=True)]
        return TextCondition.concatenate(parts)

    def forward(self, network: Any, z: Tensor, time: Tensor, text: TextCondition) -> Tensor:
        if text.mask is None or bool(text.mask.all()):
            return super().forward(network, z, time, text)
        picture = text.mask.new_ones(len(z), self.tokens((z.shape[-2], z.shape[-1])))
        with _Hiding(torch.cat([text.mask, picture], 1)[:, None, None]):
            return super().forward(network, z, time, text)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        return {
            "hidden_states": z,
            "encoder_hidden_states": text.embeds,
            "timestep": self.unshifted(time, (z.shape[-2], z.shape[-1])),
            **sizes(z, self.vae_factor),
        }


def sizes(z: Tensor, factor: int) -> dict[str, Tensor]:
    """What the networks are told of a picture that was neither enlarged nor cut: each [B, 2]."""
    whole = z.new_tensor([[side * factor for side in z.shape[-2:]]]).expand(len(z), -1)
    return {"original_size": whole, "target_size": whole, "crop_coords": torch.zeros_like(whole)}


def _padding(tokens: int) -> int:
    """How many padding tokens stand before a prompt's own."""
    return -min(tokens, LENGTH) % MULTIPLE


class _Hiding(TorchFunctionMode):
    """Keys that no layer attends to in this thread: bool [B, 1, 1, K], False where hidden.

    The network takes a mask, and adds 1 to the logits of what it should see and 0 to the rest. Its
    text has no positions, so that what is left does not depend on what is hidden.
    """

    def __init__(self, shown: Tensor) -> None:
        super().__init__()
        self.shown = shown

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is scaled_dot_product_attention:
            given["attn_mask"] = self.shown
        return func(*args, **given)
