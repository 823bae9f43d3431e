"""Real diffusers pipelines at tiny size, with random weights: nothing is mocked or downloaded.

Each builder keeps the traits of the model it stands for (kinds of blocks, tokenizers and text
encoders, scheduler) and differs in size. Weights are the same at every call, and the caller's
random state is left as it was. Attention is sharpened, because default weights make it nearly
uniform, which would make tests blind.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    PNDMScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.models.attention_processor import Attention
from diffusers.models.normalization import AdaLayerNormZero, SD35AdaLayerNormZeroX
from PIL import Image, ImageDraw
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from lab.vocabulary import bpe_merges

Pipeline = TypeVar("Pipeline", bound=DiffusionPipeline)

# fmt: off
WORDS = (
    "a", "photo", "of", "dog", "hot", "cat", "screen", "door", "red", "car", "tree", "and", "with",
    "two",
)
# fmt: on
"""One token each in both tokenizers; other words of two or more letters are several tokens."""

SD_NOISE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
"""The noise schedule that Stable Diffusion 1, 2 and XL share."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` on the CPU inside the block, and give the caller its random state back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


# ---- tokenizers ----


def clip_tokenizer(max_length: int = 77, pad_token: str = "<|endoftext|>") -> CLIPTokenizer:
    """CLIP's lower-casing byte-level BPE, in which each of WORDS is one token."""
    letters = sorted(ByteLevel.alphabet())  # CLIP's own order: "!" has id 0
    merges = bpe_merges(WORDS)
    tokens = [*letters, *(letter + "</w>" for letter in letters)]
    tokens += [left + right for left, right in merges] + ["<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        pad_token=pad_token,
        model_max_length=max_length,
    )
    # Wrongly named arguments are ignored without a word and leave a two-token tokenizer.
    assert len(tokenizer) == len(tokens) == len(set(tokens))
    return tokenizer


def t5_tokenizer(max_length: int = 512) -> T5Tokenizer:
    """T5's case-sensitive Unigram, in which each of WORDS is one token and others are spelled."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [("▁" + word, -3.0) for word in WORDS]
    pieces += [(piece, -5.0) for piece in ("ra", "ze", "li", "ght", "ff", "ic", "ing")]
    pieces += [(chr(code), -6.0) for code in (*range(0x21, 0x7F), *range(0xA1, 0x100))]
    tokenizer = T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=max_length)
    assert len(tokenizer) == len(pieces)
    return tokenizer


CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{{ message['content'][0]['text'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""A chat's template like Qwen3's."""


def chat_tokenizer(max_length: int = 1024, padding_side: str = "right") -> Any:
    """A byte-level BPE like Qwen's: each of WORDS, with the space before it, is one token."""
    letters = sorted(ByteLevel.alphabet())
    pairs, tokens = [], list(letters)
    for word in WORDS:
        whole = "Ġ"
        for letter in word:
            if whole + letter not in tokens:
                pairs.append((whole, letter))
                tokens.append(whole + letter)
            whole += letter
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    special = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    tokenizer.add_special_tokens([*special.values(), "<|im_start|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT,
        model_max_length=max_length,
        padding_side=padding_side,
        **special,
    )


# ---- pipelines ----


@seeded(1)
def sd1(prediction_type: str = "epsilon") -> StableDiffusionPipeline:
    """Stable Diffusion 1.x: native 128 px, cross-attention at latent sides 32, 16, 8 and 4."""
    scheduler = PNDMScheduler(
        **SD_NOISE,
        prediction_type=prediction_type,
        steps_offset=1,
        set_alpha_to_one=False,
        skip_prk_steps=True,
    )
    unet = _sd_unet(sample_size=32, attention_head_dim=2)
    return _sd(unet, clip_tokenizer(), "quick_gelu", scheduler)


@seeded(2)
def sd2(prediction_type: str = "v_prediction") -> StableDiffusionPipeline:
    """Stable Diffusion 2.x: native 96 px, linear projections, heads per level, "!" as padding."""
    scheduler = DDIMScheduler(
        **SD_NOISE,
        prediction_type=prediction_type,
        steps_offset=1,
        set_alpha_to_one=False,
        clip_sample=False,
    )
    unet = _sd_unet(sample_size=24, attention_head_dim=(1, 2, 4, 4), use_linear_projection=True)
    return _sd(unet, clip_tokenizer(pad_token="!"), "gelu", scheduler)


@seeded(3)
def sdxl() -> StableDiffusionXLPipeline:
    """Stable Diffusion XL: native 128 px, two text encoders, cross-attention at sides 16 and 8."""
    tokenizer, tokenizer_2 = clip_tokenizer(), clip_tokenizer(pad_token="!")
    hidden, hidden_2, time_dim = 32, 24, 8
    unet = UNet2DConditionModel(
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=(1, 2, 4),
        transformer_layers_per_block=(1, 1, 2),
        use_linear_projection=True,
        cross_attention_dim=hidden + hidden_2,
        addition_embed_type="text_time",
        addition_time_embed_dim=time_dim,
        projection_class_embeddings_input_dim=6 * time_dim + hidden_2,  # six size and crop numbers
    )
    pipe = StableDiffusionXLPipeline(
        vae=small_vae(latent_channels=4, scaling_factor=0.13025),
        text_encoder=CLIPTextModel(clip_config(tokenizer, hidden, "quick_gelu")),
        text_encoder_2=CLIPTextModelWithProjection(clip_config(tokenizer_2, hidden_2, "gelu")),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer_2,
        unet=unet,
        scheduler=EulerDiscreteScheduler(**SD_NOISE, steps_offset=1, timestep_spacing="leading"),
        force_zeros_for_empty_prompt=True,
        add_watermarker=False,
    )
    return finished(pipe)


@seeded(4)
def sd3(t5: bool = False, dual: bool = False) -> StableDiffusion3Pipeline:
    """Stable Diffusion 3: native 64 px, 8 x 8 image tokens; `dual` gives the blocks of 3.5.

    Saved without T5, it loads only with `text_encoder_3=None, tokenizer_3=None` passed: diffusers
    writes them as null and then misses them.
    """
    tokenizer, tokenizer_2 = clip_tokenizer(), clip_tokenizer(pad_token="!")
    tokenizer_3 = t5_tokenizer() if t5 else None
    hidden, hidden_2, hidden_3, heads, head_dim = 32, 24, 64, 2, 16
    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=3,
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        caption_projection_dim=heads * head_dim,
        joint_attention_dim=hidden_3,  # the pipeline pads CLIP's hidden + hidden_2 to T5's width
        pooled_projection_dim=hidden + hidden_2,
        pos_embed_max_size=32,
        dual_attention_layers=(0, 1) if dual else (),
        qk_norm="rms_norm" if dual else None,
    )
    vae = small_vae(
        latent_channels=16,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    pipe = StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=CLIPTextModelWithProjection(clip_config(tokenizer, hidden, "quick_gelu")),
        tokenizer=tokenizer,
        text_encoder_2=CLIPTextModelWithProjection(clip_config(tokenizer_2, hidden_2, "gelu")),
        tokenizer_2=tokenizer_2,
        text_encoder_3=t5_encoder(tokenizer_3, hidden_3) if tokenizer_3 else None,
        tokenizer_3=tokenizer_3,
    )
    return finished(pipe)


BUILDERS: dict[str, Callable[[], DiffusionPipeline]] = {
    "sd1": sd1,
    "sd2-v": sd2,
    "sd2-base": lambda: sd2("epsilon"),
    "sdxl": sdxl,
    "sd3": sd3,
    "sd3-t5": lambda: sd3(t5=True),
    "sd3.5": lambda: sd3(t5=True, dual=True),
}


# ---- parts ----


def _sd(
    unet: UNet2DConditionModel,
    tokenizer: CLIPTokenizer,
    activation: str,
    scheduler: PNDMScheduler | DDIMScheduler,
) -> StableDiffusionPipeline:
    """Put Stable Diffusion 1 or 2 together, without a safety checker."""
    pipe = StableDiffusionPipeline(
        vae=small_vae(latent_channels=4, scaling_factor=0.18215),
        text_encoder=CLIPTextModel(clip_config(tokenizer, 32, activation)),
        tokenizer=tokenizer,
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return finished(pipe)


def _sd_unet(**config: Any) -> UNet2DConditionModel:
    """The four-level UNet of Stable Diffusion 1 and 2, without attention at the lowest level."""
    return UNet2DConditionModel(
        down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        block_out_channels=(8, 16, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=32,
        **config,
    )


@seeded(0)
def bare_unet() -> UNet2DConditionModel:
    """A UNet some of whose attention layers have no transformer around them."""
    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 16),
        down_block_types=("AttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "AttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=8,
        attention_head_dim=4,
    ).eval()


def small_vae(**config: Any) -> AutoencoderKL:
    """An autoencoder of three levels: a latent pixel stands for 4 x 4 pixels."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 16, 16),
        norm_num_groups=4,
        **config,
    )


def flow_vae(channels: int = 4) -> AutoencoderKL:
    """An autoencoder like FLUX.1's, with a shift, and without convolutions around the latents."""
    more = {"use_quant_conv": False, "use_post_quant_conv": False, "sample_size": 64}
    return small_vae(latent_channels=channels, scaling_factor=0.36, shift_factor=0.12, **more)


def qwen3(tokenizer: Any, layers: int = 3) -> Qwen3ForCausalLM:
    """A Qwen3 that fits the tokenizer."""
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def clip_config(tokenizer: CLIPTokenizer, hidden: int, activation: str) -> CLIPTextConfig:
    """A two-layer CLIP text encoder that fits the tokenizer."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        hidden_size=hidden,
        projection_dim=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_act=activation,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def t5_encoder(tokenizer: T5Tokenizer, hidden: int) -> T5EncoderModel:
    """A two-layer T5 v1.1 encoder that fits the tokenizer."""
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=hidden,
        d_kv=16,
        d_ff=2 * hidden,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config)


@torch.no_grad()
def finished(pipe: Pipeline) -> Pipeline:
    """Make attention and text count, then leave the pipeline quiet and in eval mode."""
    models = {k: v for k, v in pipe.components.items() if isinstance(v, torch.nn.Module)}
    denoiser = models["unet" if "unet" in models else "transformer"]
    for module in denoiser.modules():
        if isinstance(module, Attention):
            _sharpen(module)
        elif isinstance(module, AdaLayerNormZero | SD35AdaLayerNormZeroX):
            module.linear.weight.mul_(3)  # gates near zero would close the blocks
    for name in models.keys() & {"text_encoder", "text_encoder_2"}:
        for module in models[name].modules():
            if isinstance(module, torch.nn.Embedding):
                # Drawn at 0.02, and XL and 3 read a hidden layer that no norm brings to unit size.
                module.weight.mul_(30)
    for model in models.values():
        model.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _sharpen(attention: Attention) -> None:
    """Bring the attention scores to a spread of 2 or 3 and, in joint attention, raise the text.

    In a UNet's self-attention, keys equal queries, so that pixels attend to those like them;
    random ones attend everywhere alike, and refined maps are then little but rounding.
    """
    if not attention.is_cross_attention and attention.add_k_proj is None:
        attention.to_k.weight.copy_(attention.to_q.weight)
    scales = dict.fromkeys(("to_q", "to_k", "add_q_proj", "add_k_proj"), 3.0)
    if attention.norm_q is not None:  # these norms undo any scale before them
        scales = dict.fromkeys(("norm_q", "norm_k", "norm_added_q", "norm_added_k"), 1.7)
    scales["add_v_proj"] = 4.0
    for name, scale in scales.items():
        layer = getattr(attention, name, None)
        if layer is not None:
            layer.weight.mul_(scale)


# ---- pictures ----


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of smooth gradients with a few coloured ellipses and rectangles; RGB, uint8."""
    rng = np.random.default_rng(seed)
    down, across = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]  # each [height, width]
    fields = np.stack([down, across, np.sin(2 * np.pi * (down + across)) / 3], axis=-1)
    value = rng.uniform(90, 160, 3) + fields @ rng.uniform(-80, 80, (3, 3))  # [height, width, 3]
    image = Image.fromarray(value.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for shape in (draw.ellipse, draw.rectangle) * 2:
        left, top = rng.uniform(0, 0.7, 2) * (width, height)
        right, bottom = (left, top) + rng.uniform(0.15, 0.35, 2) * (width, height)
        shape((left, top, right, bottom), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


# ---- parts of newer families ----


def gemma_tokenizer(further: Iterable[str] = ()) -> GemmaTokenizer:
    """Gemma's BPE with a start token: WORDS and others, with the space before, are one token."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *map(chr, range(0x21, 0x7F))]
    merges = []
    for word in (*WORDS, *further):
        whole = "▁"
        for letter in word:
            if whole + letter not in tokens:
                merges.append((whole, letter))
                tokens.append(whole + letter)
            whole += letter
    vocab = {token: index for index, token in enumerate(tokens)}
    return GemmaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)


def gemma2(tokenizer: GemmaTokenizer, hidden: int = 32) -> Gemma2Model:
    """A two-layer Gemma2 that fits the tokenizer."""
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=hidden,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    return Gemma2Model(config)


@torch.no_grad()
def finished_by_scale(pipe: Pipeline, scale: float = 3.0) -> Pipeline:
    """`finished` for heads in groups or norms without weights: attention is sharpened alone."""
    for module in pipe.transformer.modules():
        if isinstance(module, Attention):
            module.scale *= scale
    for model in pipe.components.values():
        if isinstance(model, torch.nn.Module):
            model.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe
