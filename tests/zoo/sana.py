"""SANA."""

import inspect

from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
)

from tiny import finished, gemma2, gemma_tokenizer, seeded
from zoo import Case


@seeded(32)
def sana() -> SanaPipeline:
    """SANA: native 64 px, 16 x 16 image tokens, an autoencoder without a posterior."""
    signature = inspect.signature(SanaPipeline.__call__)
    instruction = signature.parameters["complex_human_instruction"].default
    tokenizer = gemma_tokenizer(" ".join(instruction).split())  # spelled, it is too long
    vae = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types="ResBlock",
        decoder_block_types="ResBlock",
        encoder_block_out_channels=(4, 8, 8),
        decoder_block_out_channels=(4, 8, 8),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), ()),
        decoder_qkv_multiscales=((), (), ()),
        scaling_factor=0.41,
    )
    transformer = SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=2, sample_size=16, patch_size=1, mlp_ratio=1,
        num_attention_heads=3, attention_head_dim=8, num_cross_attention_heads=2,
        cross_attention_head_dim=12, cross_attention_dim=24, caption_channels=16,
    )  # fmt: skip
    pipe = SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=gemma2(tokenizer, 16),
        vae=vae,
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )
    return finished(pipe)


PLAIN = {"guidance_scale": 1.0, "use_resolution_binning": False}
GUIDED = {"guidance_scale": 2.0, "negative_prompt": "a car", "use_resolution_binning": False}
CASES = {"sana": Case(sana, PLAIN, GUIDED)}
