"""Krea 2: one stream of text and picture, several layers of a vision-language model's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from einops import rearrange
from torch import Tensor

from pixalign.backbones.qwen_image import QwenImage
from pixalign.backbones.transformer import padding_before
from pixalign.core.values import Size, TextCondition
from pixalign.text.prompts import Span
from pixalign.text.streams import TextStream

LENGTH = 512  # what the pipeline reads unless told otherwise


class Krea2(QwenImage):
    """Krea 2, with Qwen-Image's VAE.

    Its text is a template's end behind the prompt and its padding. A token's features from all
    layers that the network is shown stand side by side in `TextCondition.embeds`.
    """

    family = "krea2"
    description = "Krea 2 (one stream, flow, Qwen3-VL)"
    examples = ("krea/Krea-2-Raw",)
    transformer = "Krea2Transformer2DModel"
    guidance = 5.5  # 4.5 by the pipeline's own count, which begins at 0

    @property
    def _ending(self) -> int:
        """How many tokens the template has behind the prompt."""
        return int(self.pipe.prompt_template_encode_num_suffix_tokens)

    def _streams(self) -> tuple[TextStream, ...]:
        pipe, limit = self.pipe, LENGTH - self._ending
        stream = TextStream(
            "llm",
            pipe.tokenizer,
            0,
            limit,
            before=pipe.prompt_template_encode_prefix,
            dropped=pipe.prompt_template_encode_start_idx,
            lead=padding_before(pipe.tokenizer, limit),
        )
        return (stream,)

    def columns(
        self,
        text: str,
        places: Iterable[Sequence[Span]],
        length: int,
        streams: Iterable[TextStream] | None = None,
    ) -> tuple[tuple[int, ...], ...]:
        return super().columns(text, places, length - self._ending, streams)

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, mask = self.pipe.encode_prompt(prompts, self.device)
        return TextCondition(embeds.flatten(2), mask=mask.bool())

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        height, width = (side // self.patch for side in z.shape[-2:])
        place, layers = self.pipe.prepare_position_ids, self.denoiser.config.num_text_layers
        return {
            "hidden_states": self.pack(z),
            "timestep": time / 1000,
            "encoder_hidden_states": rearrange(text.embeds, "b l (k d) -> b l k d", k=layers),
            "encoder_attention_mask": text.mask,
            "position_ids": place(text.embeds.shape[1], height, width, z.device),
        }

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        _, rows, columns = (int(side) for side in named["position_ids"].amax(0))
        return self.patch * (rows + 1), self.patch * (columns + 1)

    def shift(self, latent: Size, steps: int) -> float | None:
        """The distilled network's does not depend on the picture."""
        return 1.15 if self.pipe.config.is_distilled else super().shift(latent, steps)
