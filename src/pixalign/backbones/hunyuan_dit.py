"""HunyuanDiT: a transformer whose cross-attention reads BERT and mT5 side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pixalign.backbones.discrete import DiscreteBackbone
from pixalign.backbones.transformer import CROSS, Transformer
from pixalign.core.values import TextCondition
from pixalign.text.streams import TextStream

_BASE, _ORIGINAL = 64, 1024  # latent positions and pixels of sides that the pipeline takes as given


class HunyuanDiT(Transformer, DiscreteBackbone):
    """HunyuanDiT 1.0 to 1.2.

    The network puts mT5's tokens behind BERT's, and vectors of its own in the place of padding.
    """

    family = "hunyuan-dit"
    description = "HunyuanDiT (cross-attention, velocity; BERT and mT5)"
    examples = ("Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers",)
    transformer = "HunyuanDiT2DModel"
    layers = {"blocks": CROSS}  # noqa: RUF012
    arguments = ("hidden_states", "timestep", "encoder_hidden_states")
    guidance = 5.0

    @property
    def lengths(self) -> tuple[int, int]:
        """How many columns BERT's tokens have, and mT5's."""
        config = self.denoiser.config
        return config.text_len, config.text_len_t5

    def text_length(self, encoded: int) -> int:
        return encoded + self.lengths[1]  # BERT's are encoded first

    def _streams(self) -> tuple[TextStream, ...]:
        first, second = self.lengths
        return (
            TextStream("clip", self.pipe.tokenizer, 0, first),
            TextStream("t5", self.pipe.tokenizer_2, first, second),
        )

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        """Both encoders' features, the narrower ones filled up with zeros."""
        how = {"do_classifier_free_guidance": False, "device": self.device, "dtype": self.dtype}
        features, masks = [], []
        for index, length in enumerate(self.lengths):
            which = {"text_encoder_index": index, "max_sequence_length": length}
            embeds, _, mask, _ = self.pipe.encode_prompt(prompts, **how, **which)
            features.append(embeds)
            masks.append(mask.bool())
        width = max(embeds.shape[-1] for embeds in features)
        filled = [pad(embeds, (0, width - embeds.shape[-1])) for embeds in features]
        return TextCondition(torch.cat(filled, 1), mask=torch.cat(masks, 1))

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        from diffusers.models.embeddings import get_2d_rotary_pos_embed
        from diffusers.pipelines.hunyuandit.pipeline_hunyuandit import (
            get_resize_crop_region_for_grid,
        )

        config, first = self.denoiser.config, self.lengths[0]
        bert, t5 = text.embeds[:, :first], text.embeds[:, first:]
        assert text.mask is not None
        height, width = (side * self.vae_factor for side in z.shape[-2:])
        grid = (z.shape[-2] // self.patch, z.shape[-1] // self.patch)
        crops = get_resize_crop_region_for_grid(grid, _BASE // self.patch)
        places = get_2d_rotary_pos_embed(
            config.attention_head_dim, crops, grid, device=z.device, output_type="pt"
        )
        return {
            "hidden_states": z,
            "timestep": time.to(z.dtype),
            "encoder_hidden_states": bert[..., : config.cross_attention_dim],
            "text_embedding_mask": text.mask[:, :first],
            "encoder_hidden_states_t5": t5[..., : config.cross_attention_dim_t5].contiguous(),
            "text_embedding_mask_t5": text.mask[:, first:],
            "image_meta_size": z.new_tensor([[_ORIGINAL, _ORIGINAL, height, width, 0, 0]] * len(z)),
            "style": torch.zeros(len(z), dtype=torch.long, device=z.device),
            "image_rotary_emb": places,
        }

    def _output(self, output: Any, z: Tensor) -> Tensor:
        """The velocity; a variance follows it, where the network has one."""
        return super()._output(output, z)[:, : z.shape[1]]
