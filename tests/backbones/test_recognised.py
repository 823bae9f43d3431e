"""Which family a pipeline is of: real models by their component lists, and those that are none."""

import pytest
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline

import pixalign as pa
import tiny
import zoo
from pixalign.backbones import FAMILIES, wrap
from zoo.flux import flux

CLIP = {"tokenizer": "CLIPTokenizer", "text_encoder": "CLIPTextModel"}
TWO = CLIP | {"tokenizer_2": "CLIPTokenizer", "text_encoder_2": "CLIPTextModelWithProjection"}
T5 = {"tokenizer": "T5Tokenizer", "text_encoder": "T5EncoderModel"}
GEMMA = {"tokenizer": "GemmaTokenizerFast", "text_encoder": "Gemma2Model"}
UNET = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL"}
FLOW = {"scheduler": "FlowMatchEulerDiscreteScheduler", "vae": "AutoencoderKL"}


def transformer(name):
    return {"transformer": f"{name}Transformer2DModel"}


# {model: (family, what its model_index.json names)}, without safety checkers and image encoders.
REAL = {
    "SD 1.5": ("sd", UNET | CLIP | {"scheduler": "PNDMScheduler"}),
    "SD 2.1": ("sd", UNET | CLIP | {"scheduler": "DDIMScheduler"}),
    "SD Turbo": ("sd", UNET | CLIP | {"scheduler": "EulerDiscreteScheduler"}),
    "LCM Dreamshaper": ("sd", UNET | CLIP | {"scheduler": "LCMScheduler"}),
    "SDXL": ("sdxl", UNET | TWO | {"scheduler": "EulerDiscreteScheduler"}),
    "SDXL Turbo": ("sdxl", UNET | TWO | {"scheduler": "EulerAncestralDiscreteScheduler"}),
    "SSD-1B": ("sdxl", UNET | TWO | {"scheduler": "EulerDiscreteScheduler"}),
    "LCM-SDXL": ("sdxl", UNET | TWO | {"scheduler": "LCMScheduler"}),
    "Playground 2.5": ("playground", UNET | TWO | {"scheduler": "EDMDPMSolverMultistepScheduler"}),
    "CosXL": ("playground", UNET | TWO | {"scheduler": "EDMEulerScheduler"}),
    "Kolors": (
        "kolors",
        UNET
        | {"text_encoder": "ChatGLMModel", "tokenizer": "ChatGLMTokenizer"}
        | {"scheduler": "EulerDiscreteScheduler"},
    ),
    "SD 3.5": (
        "sd3",
        FLOW
        | transformer("SD3")
        | TWO
        | {"text_encoder": "CLIPTextModelWithProjection"}
        | {"tokenizer_3": "T5TokenizerFast", "text_encoder_3": "T5EncoderModel"},
    ),
    "FLUX.1": (
        "flux",
        FLOW
        | transformer("Flux")
        | CLIP
        | {"tokenizer_2": "T5TokenizerFast", "text_encoder_2": "T5EncoderModel"},
    ),
    "Chroma": ("chroma", FLOW | transformer("Chroma") | T5),
    "FLUX.2 dev": (
        "flux2",
        FLOW
        | transformer("Flux2")
        | {"text_encoder": "Mistral3ForConditionalGeneration", "tokenizer": "PixtralProcessor"}
        | {"vae": "AutoencoderKLFlux2"},
    ),
    "FLUX.2 klein": (
        "flux2",
        FLOW
        | transformer("Flux2")
        | {"text_encoder": "Qwen3ForCausalLM", "tokenizer": "Qwen2TokenizerFast"}
        | {"vae": "AutoencoderKLFlux2"},
    ),
    "Z-Image Turbo": (
        "z-image",
        FLOW
        | transformer("ZImage")
        | {"text_encoder": "Qwen3Model", "tokenizer": "Qwen2Tokenizer"},
    ),
    "Qwen-Image": (
        "qwen-image",
        FLOW
        | transformer("QwenImage")
        | {"text_encoder": "Qwen2_5_VLForConditionalGeneration", "tokenizer": "Qwen2Tokenizer"}
        | {"vae": "AutoencoderKLQwenImage"},
    ),
    "HiDream": (
        "hidream",
        FLOW
        | transformer("HiDreamImage")
        | TWO
        | {"text_encoder": "CLIPTextModelWithProjection", "scheduler": "UniPCMultistepScheduler"}
        | {"tokenizer_3": "T5Tokenizer", "text_encoder_3": "T5EncoderModel"},
    ),
    "Krea 2": (
        "krea2",
        FLOW
        | transformer("Krea2")
        | {"text_encoder": "Qwen3VLModel", "tokenizer": "Qwen2Tokenizer"}
        | {"vae": "AutoencoderKLQwenImage"},
    ),
    "Lumina-Image 2": ("lumina2", FLOW | transformer("Lumina2") | GEMMA),
    "AuraFlow": (
        "aura-flow",
        FLOW
        | transformer("AuraFlow")
        | {"text_encoder": "UMT5EncoderModel", "tokenizer": "LlamaTokenizerFast"},
    ),
    "CogView4": (
        "cogview4",
        FLOW
        | transformer("CogView4")
        | {"text_encoder": "GlmModel", "tokenizer": "PreTrainedTokenizerFast"},
    ),
    "CogView3-Plus": (
        "cogview3-plus",
        transformer("CogView3Plus") | T5 | {"scheduler": "CogVideoXDDIMScheduler"},
    ),
    "PixArt-alpha": (
        "pixart",
        {"transformer": "Transformer2DModel", "scheduler": "DPMSolverMultistepScheduler"} | T5,
    ),
    "PixArt-Sigma": (
        "pixart",
        transformer("PixArt") | T5 | {"scheduler": "DPMSolverMultistepScheduler"},
    ),
    "SANA": (
        "sana",
        transformer("Sana")
        | GEMMA
        | {"vae": "AutoencoderDC", "scheduler": "DPMSolverMultistepScheduler"},
    ),
    "HunyuanDiT": (
        "hunyuan-dit",
        {"transformer": "HunyuanDiT2DModel", "scheduler": "DDPMScheduler"}
        | {"text_encoder": "BertModel", "tokenizer": "BertTokenizer"}
        | {"text_encoder_2": "T5EncoderModel", "tokenizer_2": "T5Tokenizer"},
    ),
    "Wan 2.1": (
        "wan",
        {"transformer": "WanTransformer3DModel", "vae": "AutoencoderKLWan"}
        | {"text_encoder": "UMT5EncoderModel", "tokenizer": "T5TokenizerFast"}
        | {"scheduler": "UniPCMultistepScheduler"},
    ),
    "LTX-Video": (
        "ltx",
        FLOW
        | {"transformer": "LTXVideoTransformer3DModel", "vae": "AutoencoderKLLTXVideo"}
        | {"text_encoder": "T5EncoderModel", "tokenizer": "T5Tokenizer"},
    ),
}
OTHERS = {
    "SDXL refiner": UNET
    | {"text_encoder_2": "CLIPTextModelWithProjection", "tokenizer_2": "CLIPTokenizer"},
    "DeepFloyd": {"unet": "UNet2DConditionModel"} | T5,
    "Kandinsky 2.1": {"unet": "UNet2DConditionModel", "movq": "VQModel"}
    | {"text_encoder": "MultilingualCLIP", "tokenizer": "XLMRobertaTokenizerFast"},
    "Kandinsky 2.2": {"unet": "UNet2DConditionModel", "movq": "VQModel"},
    "DiT": {"transformer": "DiTTransformer2DModel", "vae": "AutoencoderKL"},
    "VQ Diffusion": {"transformer": "Transformer2DModel", "vqvae": "VQModel"} | CLIP,
    "Stable Cascade": {"decoder": "StableCascadeUNet"} | CLIP,
    "AnimateDiff": {"unet": "UNetMotionModel", "vae": "AutoencoderKL"} | CLIP,
    "Stable Video Diffusion": {"unet": "UNetSpatioTemporalConditionModel"},
    "Mochi": {"transformer": "MochiTransformer3DModel"} | T5,
}


def test_real_models_are_recognised():
    for model, (family, components) in REAL.items():
        matching = [name for name, kind in FAMILIES.items() if kind.recognises(components)]
        assert matching == [family], model
    assert {family for family, _ in REAL.values()} == set(FAMILIES)


@pytest.mark.parametrize("model", OTHERS)
def test_other_models_are_of_no_family(model):
    assert not any(kind.recognises(OTHERS[model]) for kind in FAMILIES.values())


def test_every_family_is_in_the_zoo_under_its_own_name():
    built = {wrap(zoo.built(name)).family for name in zoo.cases()}
    assert built | {"sd3"} == set(FAMILIES)


def test_networks_with_further_inputs_are_refused(photo):
    """FLUX Fill and Control have FLUX.1's components, and see more than noised latents."""
    pipe = flux()
    pipe.transformer.register_to_config(in_channels=24, out_channels=16)
    assert wrap(pipe).family == "flux"
    with pytest.raises(ValueError, match=r"takes 6 input channels, its VAE makes 4: inpainting"):
        pa.load(pipe).align(photo, ["dog"])


def test_controlnets_are_captured_and_not_aligned(photo):
    base = tiny.sd1()
    pipe = StableDiffusionControlNetPipeline(
        **base.components,
        controlnet=ControlNetModel.from_unet(
            base.unet, conditioning_embedding_out_channels=(8, 16, 16)
        ),
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    model = pa.load(pipe)
    with pytest.raises(ValueError, match="a ControlNet steers this pipeline"):
        model.align(photo, ["dog"])
    with model.capture(["dog"]) as maps:
        pipe("a red dog", image=tiny.photo(128, 128), num_inference_steps=1, output_type="latent")
    assert maps["dog"].amax() > 0
