"""HunyuanDiT."""

from diffusers import AutoencoderKL, DDPMScheduler, HunyuanDiT2DModel, HunyuanDiTPipeline
from transformers import BertConfig, BertModel, BertTokenizer

from tiny import SD_NOISE, WORDS, finished, seeded, t5_encoder, t5_tokenizer
from zoo import Case


@seeded(70)
def hunyuan_dit() -> HunyuanDiTPipeline:
    """HunyuanDiT 1.1: native 64 px, 4 x 4 tokens, told a style and the picture's size."""
    tokenizer, tokenizer_2 = _bert_tokenizer(), t5_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=77,
    )  # fmt: skip
    transformer = HunyuanDiT2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=4, num_attention_heads=2,
        attention_head_dim=16, hidden_size=32, mlp_ratio=1.0, cross_attention_dim=16,
        cross_attention_dim_t5=32, pooled_projection_dim=16,
    )  # fmt: skip
    pipe = HunyuanDiTPipeline(
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(8,) * 4,
            norm_num_groups=4,
            latent_channels=4,
            scaling_factor=0.13025,
        ),
        text_encoder=BertModel(config),
        tokenizer=tokenizer,
        transformer=transformer,
        scheduler=DDPMScheduler(
            **{**SD_NOISE, "beta_end": 0.03},
            steps_offset=1,
            prediction_type="v_prediction",
            clip_sample=False,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
        text_encoder_2=t5_encoder(tokenizer_2, 32),
        tokenizer_2=tokenizer_2,
    )
    return finished(pipe)


def _bert_tokenizer() -> BertTokenizer:
    """BERT's WordPiece, in which each of WORDS is one token and others are spelled."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = dict.fromkeys([*special, *letters, *(f"##{sign}" for sign in letters), *WORDS])
    return BertTokenizer(
        vocab={token: index for index, token in enumerate(tokens)}, model_max_length=77
    )


EXACT = {"use_resolution_binning": False}
CASES = {
    "hunyuan-dit": Case(
        hunyuan_dit,
        {"guidance_scale": 1.0, **EXACT},
        {"negative_prompt": ["a car", "a car"], "guidance_scale": 2.0, **EXACT},
    ),
}
