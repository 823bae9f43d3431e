"""PixArt."""

from typing import Any

from diffusers import (
    AutoencoderKL,
    DPMSolverMultistepScheduler,
    PixArtAlphaPipeline,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
)

from tiny import finished, seeded, small_vae, t5_encoder, t5_tokenizer
from zoo import Case


@seeded(30)
def pixart_sigma() -> PixArtSigmaPipeline:
    """PixArt-Sigma: native 64 px, 8 x 8 image tokens."""
    vae = small_vae(latent_channels=4, scaling_factor=0.13025)
    return finished(PixArtSigmaPipeline(**_parts(vae, sample_size=16, patch_size=2)))


@seeded(31)
def pixart_alpha() -> PixArtAlphaPipeline:
    """PixArt-alpha at 1024, which is known by the side of its latents: native 128 px, not reduced.

    Larger patches leave 8 x 8 image tokens.
    """
    vae = AutoencoderKL(
        block_out_channels=(8,),
        norm_num_groups=4,
        latent_channels=4,
        scaling_factor=0.18215,
        mid_block_add_attention=False,
    )
    return finished(PixArtAlphaPipeline(**_parts(vae, sample_size=128, patch_size=16)))


def _parts(vae: AutoencoderKL, **config: Any) -> dict[str, Any]:
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=12, cross_attention_dim=24, num_layers=2,
        caption_channels=32, **config,
    )  # fmt: skip
    return {
        "tokenizer": tokenizer,
        "text_encoder": t5_encoder(tokenizer, 32),
        "vae": vae,
        "transformer": transformer,
        "scheduler": DPMSolverMultistepScheduler(),
    }


PLAIN = {"guidance_scale": 1.0, "use_resolution_binning": False}
GUIDED = {"guidance_scale": 2.0, "negative_prompt": "a car", "use_resolution_binning": False}
CASES = {
    "pixart-alpha": Case(pixart_alpha, PLAIN, GUIDED),
    "pixart-sigma": Case(pixart_sigma, PLAIN, GUIDED),
}
