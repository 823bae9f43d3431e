"""Z-Image."""

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

from tiny import chat_tokenizer, finished, flow_vae, qwen3, seeded
from zoo import Case


@seeded(9)
def z_image() -> ZImagePipeline:
    """Z-Image: native 64 px, 8 x 8 image tokens, a refiner each for picture and text."""
    tokenizer = chat_tokenizer()
    transformer = ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2,
        cap_feat_dim=32, axes_dims=[4, 6, 6], axes_lens=[256, 64, 64],
    )  # fmt: skip
    transformer.register_to_config(sample_size=16)
    for name in ("x_pad_token", "cap_pad_token"):
        torch.nn.init.normal_(getattr(transformer, name))
    pipe = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=flow_vae(),
        text_encoder=qwen3(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
    )
    return finished(pipe)


CASES = {
    "z-image": Case(
        z_image,
        {"guidance_scale": 0.0},
        {"negative_prompt": ["a car", "a car"], "guidance_scale": 2.0},
    ),
}
