"""HiDream: double and single streams over T5's and Llama's text, each layer with a Llama layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad

from pixalign.attention import Site
from pixalign.backbones.transformer import FlowTransformer, padding_before
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import SamplingPath
from pixalign.text.streams import TextStream

LENGTH = 128  # what the pipeline reads unless told otherwise


class HiDream(FlowTransformer):
    """HiDream-I1.

    Text columns are T5's tokens, Llama's of its last layer, and Llama's of the layer that belongs
    to the block. All of Llama's layers stand side by side in the rows of the last ones in
    `TextCondition.embeds`, which are so wide that the others are filled up with zeros.
    """

    family = "hidream"
    description = "HiDream-I1 (joint attention, flow, T5 and Llama)"
    examples = ("HiDream-ai/HiDream-I1-Full",)
    arguments = ("hidden_states", "timesteps", "encoder_hidden_states_t5")
    text_argument = "encoder_hidden_states_t5"
    time_argument = "timesteps"
    transformer = "HiDreamImageTransformer2DModel"
    packed = False
    guidance = 5.0

    @property
    def native_size(self) -> Size:
        side = int(self.pipe.default_sample_size) * self.vae_factor
        return side, side

    def _streams(self) -> tuple[TextStream, ...]:
        if self.pipe.tokenizer_4 is None:
            raise ValueError(
                "the pipeline's tokenizer_4 is missing: HiDream comes without Llama; load it with "
                "tokenizer_4 and text_encoder_4 of Llama-3.1-8B-Instruct"
            )
        return self.call_streams(3 * LENGTH)

    def text_length(self, encoded: int) -> int:
        return 3 * encoded  # T5's are encoded first

    def call_streams(self, length: int) -> tuple[TextStream, ...]:
        """Each tokenizer's tokens have a third of the columns, Llama's twice."""
        each, llama = length // 3, self.pipe.tokenizer_4
        t5 = TextStream("t5", self.pipe.tokenizer_3, 0, each, bounded=True)
        words = replace(t5, kind="llm", tokenizer=llama, lead=padding_before(llama, each))
        return t5, replace(words, start=each), replace(words, start=2 * each)

    def _sites(self) -> tuple[Site, ...]:
        network = self.denoiser
        blocks = (*network.double_stream_blocks, *network.single_stream_blocks)
        return tuple(Site(each.block.attn1, "joint", "joint", self.patch) for each in blocks)

    def check_alignable(self) -> None:
        super().check_alignable()
        for part in ("text_encoder_3", "text_encoder_4"):
            if getattr(self.pipe, part) is None:
                raise ValueError(f"the pipeline's {part} is missing; aligning needs it")

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        how = {"do_classifier_free_guidance": False, "max_sequence_length": LENGTH}
        t5, _, llama, _, pooled, _ = self.pipe.encode_prompt(prompts, device=self.device, **how)
        every = rearrange(llama[self._llama_layers], "k b l d -> b l (k d)")
        parts = (t5, llama[self.denoiser.config.llama_layers[-1]], every)
        filled = [pad(part, (0, every.shape[-1] - part.shape[-1])) for part in parts]
        return TextCondition(torch.cat(filled, 1), pooled)

    @property
    def _llama_layers(self) -> list[int]:
        """Those that the network reads, each once."""
        return sorted(set(self.denoiser.config.llama_layers))

    def _llama(self, embeds: Tensor) -> Tensor:
        """[layers, B, L, D]: Llama's features, zeros in layers that the network does not read."""
        known, every = self._llama_layers, embeds.chunk(3, 1)[2]
        kept = rearrange(every, "b l (k d) -> k b l d", k=len(known))
        layers = kept.new_zeros(known[-1] + 1, *kept.shape[1:])
        layers[known] = kept
        return layers

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        t5 = text.embeds.chunk(3, 1)[0][..., : self.denoiser.config.caption_channels[0]]
        return {
            "timesteps": time,
            "encoder_hidden_states_t5": t5,
            "encoder_hidden_states_llama3": self._llama(text.embeds),
            "pooled_embeds": text.pooled,
            **self._picture(z),
        }

    def _picture(self, z: Tensor) -> dict[str, Any]:
        """Latents as the network takes them; of other shapes than squares it has a fixed number.

        What fills them up keeps its place among the keys, at zero. The network refuses more.
        """
        (height, width), patch = z.shape[-2:], self.patch
        if height == width:
            return {"hidden_states": z}
        grid = (height // patch, width // patch)
        tokens = rearrange(z, "b c (h p) (w q) -> b (h w) (p q c)", p=patch, q=patch)
        count = tokens.shape[1]
        more = max(0, int(self.denoiser.max_seq) - count)
        rows = torch.arange(count, device=z.device)
        ids = torch.stack([torch.zeros_like(rows), rows // grid[1], rows % grid[1]], 1)
        return {
            "hidden_states": pad(tokens, (0, 0, 0, more)),
            "hidden_states_masks": pad(z.new_ones(len(z), count), (0, more)),
            "img_ids": pad(ids.float(), (0, 0, 0, more)).expand(len(z), -1, -1),
            "img_sizes": [grid] * len(z),
        }

    def call_latent(self, named: Mapping[str, Any]) -> Size:
        if named.get("img_sizes") is None:
            return super().call_latent(named)
        rows, columns = named["img_sizes"][0]
        return self.patch * rows, self.patch * columns

    def call_order(self, named: Mapping[str, Any], latent: Size, texts: Sequence[Tensor]) -> Tensor:
        """The picture's tokens, what fills them up, then the three texts."""
        image = self.tokens(latent)
        filled = image if latent[0] == latent[1] else max(image, int(self.denoiser.max_seq))
        places = torch.arange(filled + 3 * max(map(len, texts)))
        return torch.cat([places[:image], places[filled:], places[image:filled]])

    def _output(self, output: Any, z: Tensor) -> Tensor:
        """The network estimates the way to the picture."""
        return -super()._output(output, z)

    def path(self, steps: int, latent: Size) -> SamplingPath:
        """Its scheduler's own, shifted as for the most tokens."""
        if type(self.pipe.scheduler).__name__ == "UniPCMultistepScheduler":
            return self.scheduled(steps)
        return self.scheduled(steps, mu=self._shift_of(int(self.denoiser.max_seq)))
