"""Published architectures at their real sizes with random weights: nothing is downloaded.

The weights are drawn on the device itself. Attention is sharpened and texts are made to count,
because default weights make attention nearly uniform, and rounding would then be all that two
computations of a heatmap can be compared by. Speed does not depend on the weights.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PNDMScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.models.attention_processor import Attention
from diffusers.models.normalization import AdaLayerNormZero
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
)

from lab.vocabulary import build_tokenizer
from pixalign.backbones import Backbone, load_backbone, wrap
from pixalign.backbones.load import INT8, hide_loading_bars, resolve_device, resolve_dtype
from pixalign.backbones.locations import EMBEDDED, model_settings
from pixalign.backbones.weights import keep_as_int8
from pixalign.scenes.atlas import class_names
from pixalign.scenes.render import render
from pixalign.scenes.sample import sample_scenes

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

# fmt: off
NOUNS = (
    "dog", "cat", "car", "tree", "door", "screen", "bus", "cup", "hat", "bed",
    "bird", "boat", "book", "chair", "clock", "cow", "horse", "sheep", "train", "truck",
    "bench", "bottle", "bowl", "bridge", "bread", "apple", "banana", "cake", "fork", "knife",
    "spoon", "table", "lamp", "phone", "window", "wall", "road", "river", "house", "tower",
    "flag", "fence", "grass", "rock", "sand", "shoe", "shirt", "glove", "coat", "bag",
    "ball", "kite", "wheel", "plane", "bear", "lion", "zebra", "fish", "frog", "snake",
    "chimney", "ladder", "basket", "bucket", "broom", "brush", "candle", "mirror", "pillow",
    "carpet", "curtain", "drawer", "shelf", "stool", "sofa", "desk", "stove", "oven", "fridge",
    "sink", "faucet", "towel", "soap", "comb", "razor", "scissors", "needle", "thread", "button",
    "zipper", "belt", "scarf", "sock", "boot", "jacket", "skirt", "dress", "crown", "ring",
    "necklace", "watch", "camera", "radio", "speaker", "laptop", "keyboard", "mouse", "printer",
    "pencil", "paper", "letter", "stamp", "map", "globe", "telescope", "hammer", "saw", "drill",
    "nail", "screw", "wrench", "rope", "chain", "anchor", "sail", "canoe", "raft", "tent",
    "backpack", "lantern", "campfire", "axe", "shovel", "rake", "hose", "fountain", "statue",
    "temple", "castle", "barn", "windmill", "lighthouse", "tunnel", "tractor", "bicycle", "scooter",
    "tram", "rocket", "balloon", "drum", "guitar", "violin", "piano", "trumpet", "flute", "harp",
    "goat", "pig", "duck", "goose", "swan", "owl", "eagle", "parrot", "penguin", "turtle", "lizard",
    "spider", "bee", "butterfly", "ant", "snail", "crab", "shark", "whale", "dolphin", "seal",
    "otter", "beaver", "rabbit", "deer", "moose", "wolf", "fox", "tiger", "leopard", "elephant",
    "giraffe", "camel", "monkey", "cactus", "flower", "mushroom", "pumpkin", "carrot", "onion",
    "tomato", "potato", "corn", "pepper",
)
# fmt: on
"""Plain nouns; like CLIP's own tokenizer, ours reads each as one token."""

SD_NOISE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
CLIP_TOKENS = 49408  # of CLIP's vocabulary; the few of ours are the first


@dataclass(frozen=True)
class Model:
    """A model to be measured: ``latents`` float32 [1, C, h, w] on its device, class ``names``."""

    backbone: Backbone
    latents: Tensor
    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pipe(self) -> Any:
        """The diffusers pipeline."""
        return self.backbone.pipe

    def parameters(self) -> dict[str, int]:
        """Numbers of weights: of the network that is asked, and of all parts."""
        parts = [part for part in self.pipe.components.values() if isinstance(part, nn.Module)]
        return {
            "network": sum(weight.numel() for weight in self.backbone.denoiser.parameters()),
            "all": sum(weight.numel() for part in parts for weight in part.parameters()),
        }


def build(arch: str, device: str = "cpu", dtype: str = "auto") -> Model:
    """The architecture of that name, one of `ARCHITECTURES`, in eval mode on the device.

    "auto" is float32 on a CPU, else the family's half type. The VAE is float32, as `load` has it.
    """
    place = resolve_device(device)
    if arch == "embedded":
        hide_loading_bars()
        backbone = load_backbone(EMBEDDED, device, dtype)
        return Model(backbone, _scene(backbone), names_of(arch), model_settings(EMBEDDED))
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(0)
        pipe = PIPELINES[arch](place)
    backbone = wrap(pipe)
    number = resolve_dtype(dtype, place, type(backbone))
    for name, part in pipe.components.items():
        if isinstance(part, nn.Module):
            nn.Module.to(part.eval(), place, torch.float32 if name == "vae" else number)
    pipe.set_progress_bar_config(disable=True)
    if dtype == INT8:
        keep_as_int8(pipe)
    return Model(backbone, smooth_latents(backbone), names_of(arch))


def names_of(arch: str) -> tuple[str, ...]:
    """The classes that an architecture is asked for, in order."""
    return class_names() if arch == "embedded" else NOUNS


def smooth_latents(backbone: Backbone) -> Tensor:
    """Drawn latents float32 [1, C, h, w] of unit spread that vary slowly, as pictures do."""
    height, width = (side // backbone.vae_factor for side in backbone.native_size)
    channels = int(backbone.pipe.vae.config.latent_channels)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(
        1, channels, -(-height // 8), -(-width // 8), generator=generator, device="cpu"
    )
    fine = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (fine / fine.std()).to(backbone.device)


def _scene(backbone: Backbone) -> Tensor:
    """Latents [1, C, h, w] of a test scene, for the model that knows such scenes."""
    painted = render(sample_scenes("test", 0, 1), size=backbone.native_size[0])
    return backbone.encode_image(2 * painted.images - 1)


# ---- pipelines ----


def _sd15(device: torch.device) -> StableDiffusionPipeline:
    """Stable Diffusion 1.5: 512 px."""
    with torch.device(device):
        unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    noise = {**SD_NOISE, "steps_offset": 1, "set_alpha_to_one": False}
    return _sd(unet, _clip_l(), PNDMScheduler(**noise, skip_prk_steps=True))


def _sd21(device: torch.device) -> StableDiffusionPipeline:
    """Stable Diffusion 2.1: 768 px, velocity; it reads OpenCLIP-H's last layer but one.

    ``upcast_attention`` stands in its config; fused attention does not look at it.
    """
    with torch.device(device):
        unet = UNet2DConditionModel(
            sample_size=96,
            cross_attention_dim=1024,
            attention_head_dim=(5, 10, 20, 20),
            use_linear_projection=True,
            upcast_attention=True,
        )
    text = _clip_config(hidden=1024, layers=23, heads=16, activation="gelu", projection=512)
    noise = {**SD_NOISE, "steps_offset": 1, "set_alpha_to_one": False, "clip_sample": False}
    return _sd(unet, text, DDIMScheduler(**noise, prediction_type="v_prediction"))


def _sdxl(device: torch.device) -> StableDiffusionXLPipeline:
    """Stable Diffusion XL: 1024 px."""
    with torch.device(device):
        unet = UNet2DConditionModel(
            sample_size=128,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=(320, 640, 1280),
            attention_head_dim=(5, 10, 20),
            transformer_layers_per_block=(1, 2, 10),
            use_linear_projection=True,
            cross_attention_dim=2048,
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
        )
        encoders = CLIPTextModel(_clip_l()), CLIPTextModelWithProjection(_clip_g())
        vae = _vae(1024, scaling_factor=0.13025)
    _enliven(unet, *encoders)
    return StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=encoders[0],
        text_encoder_2=encoders[1],
        tokenizer=_tokenizer(),
        tokenizer_2=_tokenizer(),
        unet=unet,
        scheduler=EulerDiscreteScheduler(**SD_NOISE, steps_offset=1, timestep_spacing="leading"),
        add_watermarker=False,
    )


def _sd3(device: torch.device) -> StableDiffusion3Pipeline:
    """Stable Diffusion 3 medium: 1024 px, without T5."""
    with torch.device(device):
        transformer = SD3Transformer2DModel(
            sample_size=128,
            patch_size=2,
            in_channels=16,
            out_channels=16,
            num_layers=24,
            num_attention_heads=24,
            attention_head_dim=64,
            caption_projection_dim=1536,
            joint_attention_dim=4096,
            pooled_projection_dim=2048,
            pos_embed_max_size=192,
        )
        encoders = [CLIPTextModelWithProjection(config) for config in (_clip_l(), _clip_g())]
        vae = _flow_vae(scaling_factor=1.5305, shift_factor=0.0609)
    _enliven(transformer, *encoders)
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=_tokenizer(),
        text_encoder_2=encoders[1],
        tokenizer_2=_tokenizer(),
        text_encoder_3=None,
        tokenizer_3=None,
    )


def _flux(device: torch.device) -> FluxPipeline:
    """FLUX.1 dev: 1024 px. Its T5 has two layers of 24: texts are encoded once, not measured."""
    import tiny

    t5 = T5Config(vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=2, num_heads=64)
    with torch.device(device):
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)  # 12 billion numbers are drawn as they are kept
        try:
            transformer = FluxTransformer2DModel(guidance_embeds=True)
        finally:
            torch.set_default_dtype(dtype)
        transformer.register_to_config(sample_size=128)
        encoders = CLIPTextModel(_clip_l()), T5EncoderModel(t5)
        vae = _flow_vae(scaling_factor=0.3611, shift_factor=0.1159)
    _enliven(transformer, *encoders)
    return FluxPipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=_tokenizer(),
        text_encoder_2=encoders[1],
        tokenizer_2=tiny.t5_tokenizer(),
    )


def _tiny(device: torch.device) -> StableDiffusionPipeline:
    """The tests' tiny SD1 at 64 px, to try the benchmark itself."""
    import tiny

    pipe = tiny.sd1()
    pipe.unet.register_to_config(sample_size=16)
    return pipe


PIPELINES: dict[str, Callable[[torch.device], Any]] = {
    "sd15": _sd15,
    "sd21": _sd21,
    "sdxl": _sdxl,
    "sd3": _sd3,
    "flux": _flux,
    "tiny": _tiny,
}
ARCHITECTURES = (*PIPELINES, "embedded")


# ---- parts ----


def _sd(unet: UNet2DConditionModel, text: CLIPTextConfig, scheduler: Any) -> Any:
    """Put Stable Diffusion 1 or 2 together, on the UNet's device."""
    with torch.device(unet.device):
        encoder = CLIPTextModel(text)
        vae = _vae(8 * unet.config.sample_size, scaling_factor=0.18215)
    _enliven(unet, encoder)
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=encoder,
        tokenizer=_tokenizer(),
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _vae(size: int, **config: Any) -> AutoencoderKL:
    """The autoencoder of all families: a latent position stands for 8 x 8 pixels."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        sample_size=size,
        **config,
    )


def _flow_vae(**config: Any) -> AutoencoderKL:
    """That of SD3 and FLUX: 16 channels, 1024 px."""
    bare = {"use_quant_conv": False, "use_post_quant_conv": False}
    return _vae(1024, latent_channels=16, **bare, **config)


def _tokenizer() -> Any:
    return build_tokenizer(("a", "photo", "of", *NOUNS), 77)


def _clip_l() -> CLIPTextConfig:
    return _clip_config(hidden=768, layers=12, heads=12, activation="quick_gelu", projection=768)


def _clip_g() -> CLIPTextConfig:
    return _clip_config(hidden=1280, layers=32, heads=20, activation="gelu", projection=1280)


def _clip_config(
    hidden: int, layers: int, heads: int, activation: str, projection: int
) -> CLIPTextConfig:
    """A text encoder that reads our tokenizer's tokens."""
    tokenizer = _tokenizer()
    return CLIPTextConfig(
        vocab_size=CLIP_TOKENS,
        max_position_embeddings=77,
        hidden_size=hidden,
        projection_dim=projection,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_act=activation,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


@torch.no_grad()
def _enliven(denoiser: nn.Module, *encoders: nn.Module) -> None:
    """Bring attention logits to a spread of about 3 and text features to about unit size.

    In a UNet's self-attention keys equal queries, so that positions attend to those like them.
    """
    for module in denoiser.modules():
        if isinstance(module, AdaLayerNormZero):
            module.linear.weight.mul_(3)  # gates near zero would close the blocks
        if not isinstance(module, Attention):
            continue
        joint = module.add_k_proj is not None
        if module.is_cross_attention or joint:
            layers = [module.to_q, module.to_k]
            for layer in [*layers, module.add_q_proj, module.add_k_proj] if joint else layers:
                layer.weight.mul_(3)
        else:
            width = module.to_q.out_features // module.heads
            module.to_q.weight.mul_(math.sqrt(30 / math.sqrt(width)))  # a position's own logit: 10
            module.to_k.weight.copy_(module.to_q.weight)
    for encoder in encoders:
        for module in encoder.modules():
            if isinstance(module, nn.Embedding):
                module.weight.mul_(30)  # drawn at 0.02
