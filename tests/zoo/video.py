"""Wan and LTX-Video."""

from diffusers import (
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import UMT5Config, UMT5EncoderModel

from tiny import finished, seeded, t5_encoder, t5_tokenizer
from zoo import Case


@seeded(31)
def wan() -> WanPipeline:
    """Wan: native 64 px, a latent cell 4 x 4 of them and 2 frames, 8 x 8 tokens a frame."""
    tokenizer = t5_tokenizer()
    config = UMT5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2
    )
    transformer = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=32,
        freq_dim=16, ffn_dim=64, num_layers=2, rope_max_seq_len=64,
    )  # fmt: skip
    transformer.register_to_config(sample_size=16)
    vae = AutoencoderKLWan(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1,
        temperal_downsample=[False, True], scale_factor_temporal=2, scale_factor_spatial=4,
        latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 0.7, 1.0, 2.0],
    )  # fmt: skip
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    pipe = WanPipeline(tokenizer, UMT5EncoderModel(config), vae, scheduler, transformer)
    return finished(pipe)


@seeded(32)
def ltx() -> LTXPipeline:
    """LTX-Video: native 64 px, a latent cell 8 x 8 of them and 2 frames, a token each."""
    tokenizer = t5_tokenizer()
    transformer = LTXVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16,
        cross_attention_dim=32, num_layers=2, caption_channels=32,
    )  # fmt: skip
    transformer.register_to_config(sample_size=8)
    vae = AutoencoderKLLTXVideo(
        latent_channels=4, block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        down_block_types=("LTXVideoDownBlock3D",) * 2, layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1), spatio_temporal_scaling=(True, False),
        decoder_spatio_temporal_scaling=(True, False), decoder_inject_noise=(False,) * 3,
        upsample_residual=(False, False), upsample_factor=(1, 1), timestep_conditioning=False,
    )  # fmt: skip
    pipe = LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.1),
        vae=vae,
        text_encoder=t5_encoder(tokenizer, 32),
        tokenizer=tokenizer,
        transformer=transformer,
    )
    return finished(pipe)


ONE = {"num_frames": 1, "guidance_scale": 1.0}
GUIDED = {"num_frames": 1, "guidance_scale": 2.0, "negative_prompt": ["a car", "a car"]}
CASES = {"wan": Case(wan, ONE, GUIDED), "ltx": Case(ltx, ONE, GUIDED)}
