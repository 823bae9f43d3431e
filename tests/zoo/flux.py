"""FLUX.1 and Chroma."""

from diffusers import (
    ChromaPipeline,
    ChromaTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from transformers import CLIPTextModel

from tiny import clip_config, clip_tokenizer, finished, flow_vae, seeded, t5_encoder, t5_tokenizer
from zoo import Case


@seeded(5)
def flux(guidance: bool = True) -> FluxPipeline:
    """FLUX.1: native 64 px, 8 x 8 image tokens, one double and two single blocks."""
    tokenizer, tokenizer_2, hidden = clip_tokenizer(), t5_tokenizer(), 24
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=hidden,
        guidance_embeds=guidance,
        axes_dims_rope=(4, 6, 6),
    )
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=flow_vae(),
        text_encoder=CLIPTextModel(clip_config(tokenizer, hidden, "quick_gelu")),
        tokenizer=tokenizer,
        text_encoder_2=t5_encoder(tokenizer_2, 32),
        tokenizer_2=tokenizer_2,
        transformer=transformer,
    )
    transformer.register_to_config(sample_size=16)
    return finished(pipe)


@seeded(6)
def chroma() -> ChromaPipeline:
    """Chroma: FLUX.1 without CLIP, with a small network that makes all modulations."""
    tokenizer = t5_tokenizer()
    transformer = ChromaTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
    )
    pipe = ChromaPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=flow_vae(),
        text_encoder=t5_encoder(tokenizer, 32),
        tokenizer=tokenizer,
        transformer=transformer,
    )
    transformer.register_to_config(sample_size=16)
    return finished(pipe)


FLUX_GUIDED = {"negative_prompt": "a car", "true_cfg_scale": 2.0}
CASES = {
    "flux-dev": Case(flux, {"guidance_scale": 3.5}, FLUX_GUIDED),
    "flux-schnell": Case(lambda: flux(guidance=False), {}, FLUX_GUIDED),
    "chroma": Case(
        chroma, {"guidance_scale": 1.0}, {"negative_prompt": "a car", "guidance_scale": 2.0}
    ),
}
