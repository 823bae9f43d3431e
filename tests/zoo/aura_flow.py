"""AuraFlow."""

from diffusers import AuraFlowPipeline, AuraFlowTransformer2DModel, FlowMatchEulerDiscreteScheduler
from transformers import UMT5Config, UMT5EncoderModel

from tiny import finished_by_scale, seeded, small_vae, t5_tokenizer
from zoo import Case


@seeded(62)
def aura_flow(padding_side: str = "left") -> AuraFlowPipeline:
    """AuraFlow: native 64 px, 8 x 8 image tokens, one double and two single blocks."""
    tokenizer = t5_tokenizer()
    tokenizer.padding_side = padding_side
    transformer = AuraFlowTransformer2DModel(
        in_channels=4, num_mmdit_layers=1, num_single_dit_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32,
        pos_embed_max_size=64,
    )  # fmt: skip
    config = UMT5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=32, num_layers=2, num_heads=2
    )
    pipe = AuraFlowPipeline(
        tokenizer=tokenizer,
        text_encoder=UMT5EncoderModel(config),
        vae=small_vae(latent_channels=4, scaling_factor=0.13025),
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
    )
    return finished_by_scale(pipe)


GUIDED = {"negative_prompt": "a car", "guidance_scale": 2.0}
CASES = {
    "aura-flow": Case(aura_flow, {"guidance_scale": 1.0}, GUIDED),
    "aura-flow-right": Case(lambda: aura_flow("right"), {"guidance_scale": 1.0}, GUIDED),
}
