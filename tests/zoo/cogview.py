"""CogView4 and CogView3-Plus."""

from typing import Any

import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    CogView3PlusPipeline,
    CogView3PlusTransformer2DModel,
    CogView4Pipeline,
    CogView4Transformer2DModel,
    FlowMatchEulerDiscreteScheduler,
)
from tokenizers.processors import TemplateProcessing
from transformers import GlmConfig, GlmModel

from tiny import (
    SD_NOISE,
    chat_tokenizer,
    finished_by_scale,
    seeded,
    small_vae,
    t5_encoder,
    t5_tokenizer,
)
from zoo import Case

NETWORK = {
    "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16,
    "num_attention_heads": 2, "text_embed_dim": 32, "time_embed_dim": 16, "condition_dim": 4,
    "sample_size": 16,
}  # fmt: skip


def glm_tokenizer() -> Any:
    """A byte-level BPE that puts two tokens before each text, and padding before these."""
    tokenizer = chat_tokenizer(padding_side="left")
    start = "<|im_start|>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{start} {start} $A", special_tokens=[(start, tokenizer.vocab[start])]
    )
    return tokenizer


@seeded(42)
def cogview4(**scheduler: Any) -> CogView4Pipeline:
    """CogView4: native 64 px, 8 x 8 image tokens, a schedule that is shifted a lot."""
    tokenizer = glm_tokenizer()
    config = GlmConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    known = {"base_shift": 0.25, "max_shift": 6.0, "time_shift_type": "linear"}
    settings = {"use_dynamic_shifting": True, **known, **scheduler}
    pipe = CogView4Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**settings),
        vae=small_vae(latent_channels=4, scaling_factor=0.7, use_quant_conv=False),
        text_encoder=GlmModel(config),
        tokenizer=tokenizer,
        transformer=CogView4Transformer2DModel(**NETWORK),
    )
    return loud(pipe)


@seeded(43)
def cogview3_plus() -> CogView3PlusPipeline:
    """CogView3-Plus: native 64 px, 8 x 8 image tokens."""
    tokenizer = t5_tokenizer()
    noise = {**SD_NOISE, "snr_shift_scale": 4.0, "rescale_betas_zero_snr": True}
    pipe = CogView3PlusPipeline(
        scheduler=CogVideoXDDIMScheduler(
            **noise, prediction_type="v_prediction", timestep_spacing="trailing"
        ),
        vae=small_vae(latent_channels=4, scaling_factor=0.7),
        text_encoder=t5_encoder(tokenizer, 32),
        tokenizer=tokenizer,
        transformer=CogView3PlusTransformer2DModel(**NETWORK, pos_embed_max_size=32),
    )
    return loud(pipe)


@torch.no_grad()
def loud(pipe: Any) -> Any:
    """Let text count: embeddings, drawn at 0.02, reach the network before any norm."""
    pipe.text_encoder.get_input_embeddings().weight.mul_(30)
    return finished_by_scale(pipe)


CASES = {
    "cogview4": Case(cogview4, {"guidance_scale": 1.0}, {"negative_prompt": "a car"}),
    "cogview3-plus": Case(cogview3_plus, {"guidance_scale": 1.0}, {"guidance_scale": 3.0}),
}
