"""HiDream."""

from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    HiDreamImagePipeline,
    HiDreamImageTransformer2DModel,
    UniPCMultistepScheduler,
)
from transformers import CLIPTextModelWithProjection, LlamaConfig, LlamaForCausalLM

from tiny import (
    chat_tokenizer,
    clip_config,
    clip_tokenizer,
    finished_by_scale,
    flow_vae,
    seeded,
    t5_encoder,
    t5_tokenizer,
)
from zoo import Case


@seeded(80)
def hidream(scheduler: Any = None) -> HiDreamImagePipeline:
    """HiDream: native 64 px, 8 x 8 image tokens, experts, one double and two single blocks."""
    clip, t5, llama = clip_tokenizer(128), t5_tokenizer(), chat_tokenizer()
    config = LlamaConfig(
        vocab_size=len(llama), hidden_size=16, intermediate_size=16, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, attn_implementation="eager",
    )  # fmt: skip
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, caption_channels=[32, 16], text_emb_dim=2 * 16,
        num_routed_experts=2, num_activated_experts=1, axes_dims_rope=(4, 6, 6),
        max_resolution=(16, 16), llama_layers=[0, 2, 2],
    )  # fmt: skip
    pipe = HiDreamImagePipeline(
        scheduler=scheduler or FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=flow_vae(),
        text_encoder=CLIPTextModelWithProjection(clip_config(clip, 16, "quick_gelu")),
        tokenizer=clip,
        text_encoder_2=CLIPTextModelWithProjection(clip_config(clip, 16, "gelu")),
        tokenizer_2=clip,
        text_encoder_3=t5_encoder(t5, 32),
        tokenizer_3=t5,
        text_encoder_4=LlamaForCausalLM(config),
        tokenizer_4=llama,
        transformer=transformer,
    )
    pipe.default_sample_size = 16
    return loud(finished_by_scale(pipe))


@torch.no_grad()
def loud(pipe: HiDreamImagePipeline) -> HiDreamImagePipeline:
    """Let attention and Llama's text, whose first layers follow no norm, count."""
    for name, weight in pipe.transformer.named_parameters():
        if "rms_norm" in name:
            weight.mul_(1.7)
    pipe.text_encoder_4.get_input_embeddings().weight.mul_(30)
    return pipe


def unipc() -> UniPCMultistepScheduler:
    """What HiDream-I1 Full is sampled with."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )


PLAIN, GUIDED = {"guidance_scale": 1.0}, {"negative_prompt": "a car", "guidance_scale": 2.0}
CASES = {
    "hidream": Case(hidream, PLAIN, GUIDED),
    "hidream-unipc": Case(lambda: hidream(unipc()), PLAIN, GUIDED),
}
