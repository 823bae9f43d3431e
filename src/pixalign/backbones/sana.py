"""SANA: cross-attention to Gemma2 behind a long instruction, and linear self-attention.

The linear layers compute no softmax: they are not read, and maps are not refined by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.pixart import check_unchanged, usual
from pixalign.backbones.transformer import FlowTransformer
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import SamplingPath
from pixalign.text.streams import TextStream

_INSTRUCTION = "complex_human_instruction"


class Sana(FlowTransformer):
    """SANA 1.0 and 1.5; SANA-Sprint is refused."""

    family = "sana"
    description = "SANA and SANA 1.5 (cross-attention, flow, Gemma2 behind an instruction)"
    examples = ("Efficient-Large-Model/Sana_1600M_1024px_diffusers",)
    arguments = ("hidden_states", "encoder_hidden_states", "timestep")
    transformer = "SanaTransformer2DModel"
    layers = {"transformer_blocks": {"attn2": "cross"}}  # noqa: RUF012
    patch = 1
    packed = False
    guidance = 4.5

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        found = super().recognises(components)
        if found and components.get("scheduler") == "SCMScheduler":
            raise ValueError(
                "SANA-Sprint cannot be aligned: it was distilled to jump from noise to pictures "
                "under guidance, so that its errors do not tell likely texts; use SANA"
            )
        return found

    @property
    def instruction(self) -> list[str]:
        """What the pipeline puts before a prompt unless told otherwise."""
        said: list[str] = usual(type(self.pipe).__call__, _INSTRUCTION)
        return said

    def check_encoding(self, prompts: Sequence[str], given: Mapping[str, Any]) -> None:
        check_unchanged(self.pipe, prompts, given)
        if given.get("prompt") is not None and given.get(_INSTRUCTION) != self.instruction:
            raise ValueError(
                f"the prompt is encoded under another {_INSTRUCTION} than the pipeline's own, with "
                "which the columns of words are counted; leave it as it is"
            )

    def _streams(self) -> tuple[TextStream, ...]:
        # Shown are the first column, which every text shares, and the last of the padded text;
        # the pipeline lets these begin where the prompt does, behind the instruction.
        tokenizer, before = self.pipe.tokenizer, "\n".join(self.instruction)
        limit = usual(type(self.pipe).encode_prompt, "max_sequence_length")
        dropped = len(tokenizer.encode(before)) - 2
        return (TextStream("llm", tokenizer, 0, limit, before=before, lower=True, dropped=dropped),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        return self._encoded_under(self.instruction, prompts)

    @torch.no_grad()
    def unconditional(self) -> TextCondition:
        """The empty prompt alone: the pipeline leads away from a text without instruction."""
        return self._encoded_under(None, [""])

    def _encoded_under(self, instruction: list[str] | None, prompts: list[str]) -> TextCondition:
        how = {"device": self.device, _INSTRUCTION: instruction}
        embeds, mask, *_ = self.pipe.encode_prompt(prompts, False, **how)
        return TextCondition(embeds.to(self.dtype), mask=mask.bool())

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        return {
            "hidden_states": z,
            "timestep": time * self.denoiser.config.timestep_scale,
            "encoder_hidden_states": text.embeds,
            "encoder_attention_mask": text.mask,
        }

    def path(self, steps: int, latent: Size) -> SamplingPath:
        """Its scheduler's own, which may tell the network a time rounded to a whole number."""
        return self.scheduled(steps)

    def _encoded(self, vae: Any, pixels: Tensor) -> Tensor:
        """The autoencoder has no posterior: what it gives is the latent itself."""
        latents: Tensor = vae.encode(pixels).latent
        return latents
