"""FLUX.2: double and single streams, a language model's text, normalised latents in patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones.transformer import JOINT, FlowTransformer, chat, padding_before
from pixalign.core.values import Size, TextCondition
from pixalign.text.streams import TextStream, around_prompt

LENGTH = 512  # what the pipelines read unless told otherwise


class Flux2(FlowTransformer):
    """FLUX.2 dev, which is told its guidance, and klein.

    A latent here is a patch of 2 x 2 of the VAE's, each channel normalised.
    """

    family = "flux2"
    description = "FLUX.2 dev and klein (joint attention, flow, Mistral or Qwen3)"
    examples = ("black-forest-labs/FLUX.2-dev", "black-forest-labs/FLUX.2-klein-4B")
    transformer = "Flux2Transformer2DModel"
    layers = {"transformer_blocks": JOINT, "single_transformer_blocks": JOINT}  # noqa: RUF012
    patch = 1
    guidance = 4.0

    @property
    def vae_factor(self) -> int:
        return 2 * super().vae_factor

    @property
    def latent_channels(self) -> int:
        return 4 * super().latent_channels

    def _streams(self) -> tuple[TextStream, ...]:
        pipe = self.pipe
        if hasattr(pipe, "system_message"):  # dev's processor
            tokenizer = pipe.tokenizer.tokenizer
            system = {"role": "system", "content": [{"type": "text", "text": pipe.system_message}]}

            def template(prompt: str) -> str:
                user = {"role": "user", "content": [{"type": "text", "text": prompt}]}
                said: str = pipe.tokenizer.apply_chat_template([system, user], tokenize=False)
                return said

            before, after = around_prompt(template)
        else:
            tokenizer = pipe.tokenizer
            before, after = chat(tokenizer, add_generation_prompt=True, enable_thinking=False)
        stream = TextStream("llm", tokenizer, 0, LENGTH, before=before, after=after, special=False)
        return (replace(stream, lead=padding_before(tokenizer, LENGTH)),)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, _ = self.pipe.encode_prompt(prompts, self.device)
        return self.told(TextCondition(embeds), 1.0)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        pipe = self.pipe
        return {
            "hidden_states": self.pack(z),
            "timestep": time / 1000,
            "encoder_hidden_states": text.embeds,
            "txt_ids": pipe._prepare_text_ids(text.embeds[:1])[0].to(z.device),
            "img_ids": pipe._prepare_latent_ids(z[:1])[0].to(z.device),
            "guidance": self.guidance_told(text),
        }

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        _, rows, columns, _ = named["img_ids"].flatten(0, -2).amax(0).tolist()
        return int(rows) + 1, int(columns) + 1

    def shift(self, latent: Size, steps: int) -> float:
        from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

        return float(compute_empirical_mu(self.tokens(latent), steps))

    def _encoded(self, vae: Any, pixels: Tensor) -> Tensor:
        patches: Tensor = self.pipe._patchify_latents(super()._encoded(vae, pixels))
        return patches

    def _decoded(self, vae: Any, latents: Tensor) -> Tensor:
        return super()._decoded(vae, self.pipe._unpatchify_latents(latents))

    def _latent_statistics(self, vae: Any) -> tuple[Tensor, Tensor]:
        mean, variance = (x.reshape(1, -1, 1, 1) for x in (vae.bn.running_mean, vae.bn.running_var))
        return mean, 1 / torch.sqrt(variance + vae.config.batch_norm_eps)
