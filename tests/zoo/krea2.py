"""Krea 2."""

from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    Krea2Pipeline,
    Krea2Transformer2DModel,
)
from transformers import Qwen3VLConfig, Qwen3VLModel

from tiny import chat_tokenizer, finished, seeded
from zoo import Case


@seeded(41)
def krea2(is_distilled: bool = False) -> Krea2Pipeline:
    """Krea 2: native 64 px, 8 x 8 image tokens, grouped heads, three layers of the text."""
    tokenizer = chat_tokenizer()
    transformer = Krea2Transformer2DModel(
        in_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=16, timestep_embed_dim=8, text_hidden_dim=16,
        num_text_layers=2, text_num_attention_heads=1, text_num_key_value_heads=1,
        text_intermediate_size=16, num_layerwise_text_blocks=1, num_refiner_text_blocks=1,
        axes_dims_rope=(2, 2, 4),
    )  # fmt: skip
    transformer.register_to_config(sample_size=16)
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.2, -0.1, 0.0, 0.3], latents_std=[0.8, 1.2, 1.0, 1.7],
    )  # fmt: skip
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 16,
        "intermediate_size": 16, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    pipe = Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_image_seq_len=6400
        ),
        vae=vae,
        text_encoder=Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision)),
        tokenizer=tokenizer,
        transformer=transformer,
        text_encoder_select_layers=(1, 2),
        is_distilled=is_distilled,
    )
    prefix, suffix = pipe.prompt_template_encode_prefix, pipe.prompt_template_encode_suffix
    pipe.prompt_template_encode_start_idx = len(tokenizer(prefix)["input_ids"])
    pipe.prompt_template_encode_num_suffix_tokens = len(tokenizer(suffix)["input_ids"])
    return finished(pipe)


CASES = {
    "krea2": Case(krea2, {"guidance_scale": 0.0}, {"negative_prompt": "a car"}),
}
