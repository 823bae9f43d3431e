"""UNets like Stable Diffusion XL's and 1's with other schedules, fewer layers or told guidance."""

from typing import Any

from diffusers import (
    EDMDPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LatentConsistencyModelPipeline,
    LCMScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from tiny import SD_NOISE, clip_config, clip_tokenizer, finished, seeded, small_vae
from zoo import Case

HIDDEN, HIDDEN_2, TIME = 24, 16, 4
TRAILING = {**SD_NOISE, "timestep_spacing": "trailing"}


def xl_unet(pooled: int = HIDDEN_2, **config: Any) -> UNet2DConditionModel:
    """SDXL's three levels: native 64 px, cross-attention at sides 8 and 4."""
    usual = {
        "sample_size": 16,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "block_out_channels": (8, 16, 16),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "attention_head_dim": (1, 2, 2),
        "use_linear_projection": True,
        "cross_attention_dim": HIDDEN + HIDDEN_2,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": TIME,
        "projection_class_embeddings_input_dim": 6 * TIME + pooled,
    }
    return UNet2DConditionModel(**(usual | config))


def _xl(unet: UNet2DConditionModel, scheduler: Any, **vae: Any) -> StableDiffusionXLPipeline:
    tokenizer, tokenizer_2 = clip_tokenizer(), clip_tokenizer(pad_token="!")
    pipe = StableDiffusionXLPipeline(
        vae=small_vae(**({"latent_channels": 4, "scaling_factor": 0.13025} | vae)),
        text_encoder=CLIPTextModel(clip_config(tokenizer, HIDDEN, "quick_gelu")),
        text_encoder_2=CLIPTextModelWithProjection(clip_config(tokenizer_2, HIDDEN_2, "gelu")),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer_2,
        unet=unet,
        scheduler=scheduler,
        add_watermarker=False,
    )
    return finished(pipe)


@seeded(71)
def turbo() -> StableDiffusionXLPipeline:
    """SDXL Turbo: one to four steps of an ancestral sampler, from the noisiest."""
    return _xl(xl_unet(), EulerAncestralDiscreteScheduler(**TRAILING))


@seeded(72)
def lightning() -> StableDiffusionXLPipeline:
    """SDXL Lightning for one step, which estimates the clean latents."""
    return _xl(xl_unet(), EulerDiscreteScheduler(**TRAILING, prediction_type="sample"))


@seeded(73)
def ssd_1b() -> StableDiffusionXLPipeline:
    """SSD-1B: no attention in the middle, and not as many layers on the way down as up."""
    unet = xl_unet(
        mid_block_type="UNetMidBlock2D",
        transformer_layers_per_block=[1, [1], [2]],
        reverse_transformer_layers_per_block=[[2, 1], [1, 1], 1],
    )
    return _xl(unet, EulerDiscreteScheduler(**SD_NOISE, steps_offset=1, timestep_spacing="leading"))


@seeded(74)
def playground() -> StableDiffusionXLPipeline:
    """Playground 2.5: EDM's noise levels, and statistics for each channel of the latents."""
    statistics = {"latents_mean": [-1.6, 1.1, 3.3, 0.4], "latents_std": [8.4, 5.9, 5.3, 5.2]}
    return _xl(xl_unet(), EDMDPMSolverMultistepScheduler(), scaling_factor=0.5, **statistics)


@seeded(75)
def cosxl() -> StableDiffusionXLPipeline:
    """CosXL: EDM with the velocity itself and another spacing of the levels."""
    how = {"sigma_data": 1.0, "sigma_max": 120.0, "sigma_schedule": "exponential"}
    return _xl(xl_unet(), EDMEulerScheduler(**how, prediction_type="v_prediction"))


@seeded(76)
def lcm_xl() -> StableDiffusionXLPipeline:
    """LCM-SDXL, told its guidance beside the time."""
    return _xl(xl_unet(time_cond_proj_dim=16), LCMScheduler(**SD_NOISE))


@seeded(77)
def lcm() -> LatentConsistencyModelPipeline:
    """LCM: Stable Diffusion 1 at native 64 px, told its guidance beside the time."""
    tokenizer = clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=16,
        down_block_types=("CrossAttnDownBlock2D",) * 2 + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 2,
        block_out_channels=(8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=2,
        cross_attention_dim=HIDDEN,
        time_cond_proj_dim=16,
    )
    pipe = LatentConsistencyModelPipeline(
        vae=small_vae(latent_channels=4, scaling_factor=0.18215),
        text_encoder=CLIPTextModel(clip_config(tokenizer, HIDDEN, "quick_gelu")),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=LCMScheduler(**SD_NOISE),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return finished(pipe)


PLAIN = {"guidance_scale": 1.0}
GUIDED = {"negative_prompt": ["a car", "a car"], "guidance_scale": 2.0}
TOLD = {"guidance_scale": 3.5}
CASES = {
    "sdxl-turbo": Case(turbo, PLAIN, GUIDED),
    "sdxl-lightning": Case(lightning, PLAIN, GUIDED),
    "ssd-1b": Case(ssd_1b, PLAIN, GUIDED),
    "playground": Case(playground, PLAIN, GUIDED, opposite=True),
    "cosxl": Case(cosxl, PLAIN, GUIDED),
    "lcm": Case(lcm, TOLD, TOLD),
    "lcm-sdxl": Case(lcm_xl, TOLD, TOLD),
}
