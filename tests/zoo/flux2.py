"""FLUX.2."""

from typing import Any

from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
)
from transformers import MistralConfig, MistralForCausalLM

from tiny import chat_tokenizer, finished, qwen3, seeded
from zoo import Case


@seeded(7)
def flux2_klein() -> Flux2KleinPipeline:
    """FLUX.2 klein: native 64 px, 8 x 8 image tokens, one double and two single blocks."""
    tokenizer = chat_tokenizer()
    pipe = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_flux2_vae(),
        text_encoder=qwen3(tokenizer, layers=28),
        tokenizer=tokenizer,
        transformer=_flux2(joint_attention_dim=3 * 32, guidance_embeds=False),
    )
    return finished(pipe)


@seeded(8)
def flux2_dev() -> Flux2Pipeline:
    """FLUX.2 dev: Mistral's text behind a system message, and told guidance."""
    tokenizer = chat_tokenizer(padding_side="left")
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=31,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    pipe = Flux2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_flux2_vae(),
        text_encoder=MistralForCausalLM(config),
        tokenizer=ChatProcessor(tokenizer),
        transformer=_flux2(joint_attention_dim=3 * 16, guidance_embeds=True),
    )
    pipe.system_message = "two photo of a hot tree."
    return finished(pipe)


class ChatProcessor:
    """A processor of pictures and text, of which text alone is asked."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.apply_chat_template = tokenizer.apply_chat_template


def _flux2_vae() -> AutoencoderKLFlux2:
    """FLUX.2's autoencoder, with statistics that count."""
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 16, 16),
        norm_num_groups=4,
        latent_channels=4,
        sample_size=64,
    )
    vae.bn.running_mean.normal_()
    vae.bn.running_var.uniform_(0.5, 2)
    return vae


def _flux2(**config: Any) -> Flux2Transformer2DModel:
    transformer = Flux2Transformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4), **config,
    )  # fmt: skip
    transformer.register_to_config(sample_size=16)
    return transformer


CASES = {
    "flux2-klein": Case(flux2_klein, {"guidance_scale": 1.0}, {"guidance_scale": 2.0}),
    "flux2-dev": Case(flux2_dev, {"guidance_scale": 3.5}, {"guidance_scale": 3.5}),
}
