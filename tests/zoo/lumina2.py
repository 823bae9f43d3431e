"""Lumina-Image 2."""

from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
)

from tiny import finished_by_scale, gemma2, gemma_tokenizer, seeded
from zoo import Case


@seeded(61)
def lumina2(**scheduler: bool) -> Lumina2Pipeline:
    """Lumina-Image 2: native 64 px, 4 x 4 image tokens, grouped heads, refiners for both."""
    tokenizer = gemma_tokenizer()
    transformer = Lumina2Transformer2DModel(
        sample_size=8, in_channels=4, hidden_size=32, num_layers=2, num_refiner_layers=1,
        num_attention_heads=2, num_kv_heads=1, multiple_of=16, axes_dim_rope=(4, 6, 6),
        axes_lens=(300, 32, 32), cap_feat_dim=32,
    )  # fmt: skip
    pipe = Lumina2Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0, **scheduler),
        vae=_vae(),
        text_encoder=gemma2(tokenizer),
        tokenizer=tokenizer,
    )
    pipe.system_prompt = "two photo of a hot tree."
    return finished_by_scale(pipe)


def _vae() -> AutoencoderKL:
    """FLUX.1's with four levels: the pipeline takes a latent pixel for 8 x 8 pixels."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        norm_num_groups=4,
        latent_channels=4,
        scaling_factor=0.36,
        shift_factor=0.12,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


CASES = {
    "lumina2": Case(
        lumina2,
        {"guidance_scale": 1.0},
        {"negative_prompt": ["a car", "two cat of a photo"], "guidance_scale": 2.0},
    ),
}
