"""Qwen-Image."""

from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from tiny import chat_tokenizer, finished, seeded
from zoo import Case


@seeded(10)
def qwen_image() -> QwenImagePipeline:
    """Qwen-Image: native 64 px, a VAE of videos with statistics for each channel."""
    tokenizer = chat_tokenizer()
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    transformer.register_to_config(sample_size=16)
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 0.7, 1.0, 2.0],
    )  # fmt: skip
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    pipe = QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.02),
        vae=vae,
        text_encoder=Qwen2_5_VLForConditionalGeneration(config),
        tokenizer=tokenizer,
        transformer=transformer,
    )
    before = pipe.prompt_template_encode.split("{}")[0]
    pipe.prompt_template_encode_start_idx = len(tokenizer(before)["input_ids"])
    return finished(pipe)


CASES = {
    "qwen-image": Case(qwen_image, {}, {"negative_prompt": "a car", "true_cfg_scale": 2.0}),
}
