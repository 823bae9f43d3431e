"""Every family: recognised, read, asked, and left as it was."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderTiny,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EDMDPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    UNet2DModel,
)
from safetensors.torch import load_file, save_file

import pixalign as pa
import tiny
from helpers import equal, everything, inputs, model_of
from pixalign.backbones import FAMILIES, load_backbone, wrap
from pixalign.backbones.load import family_of_folder, resolve_device
from pixalign.diffusion.timesteps import positions
from pixalign.pictures.reading import to_pixels
from single_file import original_state

TWO = pa.AlignConfig(elbo_steps=2, collect_steps=2)
EXPECTED = {
    "sd1": ("sd", "epsilon", (128, 128), 4 * 8),
    "sd2-v": ("sd", "velocity", (96, 96), 4 * 8),
    "sd2-base": ("sd", "epsilon", (96, 96), 4 * 8),
    "sdxl": ("sdxl", "epsilon", (128, 128), 4 * 4),
    "sd3": ("sd3", "flow", (64, 64), 4 * 2),
    "sd3-t5": ("sd3", "flow", (64, 64), 4 * 2),
    "sd3.5": ("sd3", "flow", (64, 64), 4 * 2),
}


@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_what_a_family_says_of_itself(pipeline, name):
    backbone = wrap(pipeline(name))
    said = (backbone.family, backbone.objective, backbone.native_size, backbone.size_multiple)
    assert said == EXPECTED[name]
    assert backbone.family in FAMILIES


def test_image_latents_are_the_scaled_posterior_mean(any_pipe):
    backbone = wrap(any_pipe)
    pixels = to_pixels(tiny.photo(50, 40), backbone.native_size)
    latents = backbone.encode_image(pixels)

    with torch.no_grad():
        posterior = any_pipe.vae.encode(pixels).latent_dist
    config = any_pipe.vae.config
    expected = (posterior.mean - (config.shift_factor or 0)) * config.scaling_factor
    torch.testing.assert_close(latents, expected)
    assert torch.equal(latents, backbone.encode_image(pixels))  # nothing is sampled


def test_text_is_what_the_pipeline_itself_would_read(any_pipe):
    """The conditional embeddings that a plain call hands to the denoiser."""
    backbone = wrap(any_pipe)
    seen = {}

    def keep(module, args, kwargs):
        seen.setdefault("embeds", kwargs["encoder_hidden_states"])
        added = kwargs.get("added_cond_kwargs") or {}
        seen.setdefault("pooled", kwargs.get("pooled_projections", added.get("text_embeds")))
        seen.setdefault("time_ids", added.get("time_ids"))

    call = {"num_inference_steps": 1, "guidance_scale": 4.0, "output_type": "latent"}
    with backbone.denoiser.register_forward_pre_hook(keep, with_kwargs=True):
        any_pipe("a photo of hot dog", **call)

    text = backbone.encode_text(["a photo of hot dog"])
    torch.testing.assert_close(text.embeds, seen["embeds"][1:])
    if text.pooled is not None:
        torch.testing.assert_close(text.pooled, seen["pooled"][1:])
    if seen["time_ids"] is not None:
        height, width = backbone.native_size
        assert seen["time_ids"][1].tolist() == [height, width, 0, 0, height, width]


def test_sdxl_is_told_the_size_of_the_picture(pipeline):
    backbone = wrap(pipeline("sdxl"))
    seen = {}
    z, steps, text = inputs(backbone, size=(16, 40))
    with backbone.denoiser.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(kwargs["added_cond_kwargs"]), with_kwargs=True
    ):
        backbone.predict(z, steps, text)
    assert seen["time_ids"].tolist() == [[64, 160, 0, 0, 64, 160]] * 2


def test_many_prompts_are_encoded_in_portions(pipeline):
    backbone = wrap(pipeline("sdxl"))
    prompts = [f"a photo of dog {i}" for i in range(70)]
    text = backbone.encode_text(prompts)
    assert len(text) == 70
    single = backbone.encode_text(prompts[69:])
    torch.testing.assert_close(text.embeds[69:], single.embeds, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(text.pooled[69:], single.pooled, atol=1e-5, rtol=1e-4)


def test_epsilon_of_a_velocity_network(pipeline):
    """Against diffusers' own conversion, done by its DDIM scheduler."""
    pipe = pipeline("sd2-v")
    backbone = wrap(pipe)
    steps = backbone.schedule.at_indices([600])
    z = torch.randn(1, 4, 24, 24, generator=torch.Generator().manual_seed(0))
    text = backbone.encode_text(["a photo of dog"])
    velocity = backbone.predict(z, steps, text)

    signal = pipe.scheduler.alphas_cumprod[600]
    alpha, sigma = signal.sqrt(), (1 - signal).sqrt()
    expected = alpha * velocity + sigma * z  # DDIMScheduler.step, prediction_type v_prediction
    torch.testing.assert_close(backbone.epsilon(z, steps, text), expected)


def test_schedule_does_not_depend_on_the_sampler(pipeline):
    pipe = tiny.sd1()
    expected = wrap(pipeline("sd1")).schedule.at_indices([0, 500, 999])
    for sampler in (DDIMScheduler, EulerDiscreteScheduler):
        pipe.scheduler = sampler.from_config(pipe.scheduler.config)
        pipe.scheduler.set_timesteps(7)
        found = wrap(pipe).schedule.at_indices([0, 500, 999])
        torch.testing.assert_close(found.alpha, expected.alpha)


def test_flow_schedule_survives_a_pipeline_call():
    pipe = tiny.sd3()
    backbone = wrap(pipe)
    before = backbone.schedule.at_indices([20, 200]).sigma
    pipe("a dog", num_inference_steps=3, output_type="latent")
    assert torch.equal(wrap(pipe).schedule.at_indices([20, 200]).sigma, before)


def test_loaded_pipeline_is_left_exactly_as_it_was(any_pipe, photo):
    # The first call ever lets transformers hook its text encoders, for good.
    any_pipe("a dog", num_inference_steps=1, output_type="latent")
    before = everything(any_pipe)
    model_of(any_pipe).align(photo, ["dog", "hot dog"], config=TWO)
    after = everything(any_pipe)

    assert before.keys() == after.keys()
    for key in before:
        assert equal(before[key], after[key]), key


def test_half_precision_pipeline_keeps_its_vae(photo):
    """The VAE runs in float32 on a copy; the pipeline's own stays in half precision."""
    pipe = tiny.sd1().to(torch.bfloat16)
    before = everything(pipe)
    result = model_of(pipe).align(photo, ["dog", "cat"], config=TWO)

    assert np.isfinite(result.heatmaps).all()
    assert result.provenance["model"]["dtype"] == "bfloat16"
    after = everything(pipe)
    assert all(equal(before[key], after[key]) for key in before)
    full = model_of(tiny.sd1()).align(photo, ["dog", "cat"], config=TWO)
    np.testing.assert_allclose(result.losses, full.losses, rtol=0.05)


@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_folder_and_object_give_the_same(pipeline, name, tmp_path, photo):
    pipe = pipeline(name)
    pipe.save_pretrained(tmp_path / "model")
    loaded = model_of(tmp_path / "model", device="cpu")
    given = model_of(pipe)

    theirs, as_laid_out = (a.align(photo, ["dog", "zebra"], config=TWO) for a in (given, loaded))
    loaded.backbone.denoiser.to(memory_format=torch.contiguous_format)
    ours = loaded.align(photo, ["dog", "zebra"], config=TWO)

    assert np.array_equal(ours.heatmaps, theirs.heatmaps)
    assert np.array_equal(ours.losses, theirs.losses)
    np.testing.assert_allclose(as_laid_out.losses, theirs.losses, rtol=1e-5)
    assert family_of_folder(tmp_path / "model") == EXPECTED[name][0]


@pytest.mark.parametrize("model", ["StableCascadeDecoderPipeline", "MochiPipeline"])
def test_unknown_family_is_refused_before_weights_are_read(tmp_path, model):
    index = {
        "_class_name": model,
        "transformer": ["diffusers", "DiTTransformer2DModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"{model}.*no known family.*sd: .*sdxl: .*sd3: "):
        load_backbone(tmp_path)
    assert family_of_folder(tmp_path) is None


def test_object_of_no_family_is_refused():
    with pytest.raises(ValueError, match="UNet2DModel is of no known family"):
        wrap(UNet2DModel(sample_size=8, block_out_channels=(32, 32, 32, 32)))


def _nine_channels(pipe):
    pipe.unet = type(pipe.unet).from_config(pipe.unet.config, in_channels=9)


def _tiny_autoencoder(pipe):
    widths, blocks = (8, 8, 8), (1, 1, 1)
    pipe.vae = AutoencoderTiny(
        encoder_block_out_channels=widths, decoder_block_out_channels=widths,
        num_encoder_blocks=blocks, num_decoder_blocks=blocks,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_nine_channels, r"9 input channels.*inpainting"),
        (_tiny_autoencoder, "AutoencoderTiny has no posterior"),
        (lambda pipe: setattr(pipe, "text_encoder", None), "text_encoder is missing"),
        (
            lambda pipe: pipe.unet.register_to_config(encoder_hid_dim_type="ip_image_proj"),
            r"unload_ip_adapter\(\)",
        ),
        (
            lambda pipe: pipe.scheduler.register_to_config(prediction_type="edm"),
            "'edm'; allowed: 'epsilon', 'v_prediction', 'sample'",
        ),
        (
            lambda pipe: setattr(pipe, "scheduler", EDMDPMSolverMultistepScheduler()),
            "EDMDPMSolverMultistepScheduler does not say",
        ),
    ],
)
def test_unfit_pipelines_are_known_and_refused(spoil, message):
    pipe = tiny.sd1()
    spoil(pipe)
    assert wrap(pipe).family == "sd"  # enough to capture
    with pytest.raises(ValueError, match=message):
        model_of(pipe).align(tiny.photo(40, 40), ["dog"])


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("no/such/folder", FileNotFoundError, "neither a folder nor a hub id"),
        ("nobody/nothing", OSError, "'nobody/nothing' is not to be had"),
    ],
)
def test_models_that_are_not_there(model, error, message):
    with pytest.raises(error, match=message):
        model_of(model)


def test_folders_without_a_pipeline_or_with_pickled_weights_are_refused(sd1, tmp_path):
    with pytest.raises(ValueError, match=r"no model_index\.json"):
        load_backbone(tmp_path)
    sd1.save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(OSError, match=r"cannot load .*safetensors"):
        load_backbone(tmp_path, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_missing_device_is_named():
    with pytest.raises(ValueError, match=r"'cuda' is not there; this machine has: .*cpu"):
        resolve_device("cuda")


def test_bad_choices_are_named(sd1_folder, sd1):
    with pytest.raises(ValueError, match="device is 'gpu'; allowed: 'auto', 'cpu', 'cuda', 'mps'"):
        load_backbone(sd1_folder, device="gpu")
    for device in ("cpu:x", "cpu:0", "cuda:x", "mps:1"):
        with pytest.raises(ValueError, match=f"device is '{device}'; only cuda takes a number"):
            resolve_device(device)
    with pytest.raises(ValueError, match="dtype is 'half'; allowed"):
        load_backbone(sd1_folder, dtype="half")
    with pytest.raises(ValueError, match="cannot change a loaded pipeline"):
        model_of(sd1, dtype="float16")


def test_sample_prediction_works(photo):
    pipe = tiny.sd1(prediction_type="sample")
    result = model_of(pipe).align(photo, ["dog", "cat"], config=TWO)
    assert result.provenance["model"]["objective"] == "sample"
    assert np.isfinite(result.losses).all()


def test_compiled_pipeline_is_read_eagerly(photo):
    """Hooks are invisible to compiled code, so reading must step around it."""
    settings = pa.AlignConfig.uncalibrated(collect_steps=2)
    plain = model_of(tiny.sd3()).align(photo, ["dog", "cat"], config=settings)
    pipe = tiny.sd3()
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")
    whole = model_of(pipe)
    steps = whole.backbone.schedule.at_positions(positions("even", 1))
    text = whole.backbone.encode_text(["dog"])
    whole.backbone.predict(torch.randn(1, 16, 16, 16), steps, text)  # compiled before hooks come
    compiled = whole.align(photo, ["dog", "cat"], config=settings)

    np.testing.assert_allclose(compiled.heatmaps, plain.heatmaps, atol=1e-5)


def test_flow_shift_of_other_samplers_is_read():
    pipe = tiny.sd3()
    expected = wrap(pipe).schedule.at_indices([200]).sigma
    pipe.scheduler = DPMSolverMultistepScheduler(
        use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0
    )
    assert torch.equal(wrap(pipe).schedule.at_indices([200]).sigma, expected)


def test_textual_inversions_of_several_vectors_are_refused(photo):
    pipe = tiny.sd1()
    vectors = {"<toy>": torch.randn(4, pipe.text_encoder.config.hidden_size)}
    pipe.load_textual_inversion(vectors)
    aligner = model_of(pipe)
    with pytest.raises(ValueError, match="textual inversion of several vectors"):
        aligner.align(photo, ["<toy>", "dog"])
    assert aligner.align(photo, ["dog"], config=pa.AlignConfig(elbo_steps=1, collect_steps=1))


def test_damaged_folders_are_explained(sd1_folder, tmp_path):
    folder = shutil.copytree(sd1_folder, tmp_path / "model")
    (folder / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"")
    with pytest.raises(OSError, match="cannot load"):
        load_backbone(folder, device="cpu")
    (folder / "model_index.json").write_text("{")
    with pytest.raises(ValueError, match=r"damaged model_index\.json"):
        load_backbone(folder, device="cpu")
    assert family_of_folder(folder) is None


def test_folder_without_tokenizer_files_is_explained(sd1_folder, tmp_path, photo):
    folder = shutil.copytree(sd1_folder, tmp_path / "model")
    for file in (folder / "tokenizer").iterdir():
        file.unlink()
    with pytest.raises((OSError, ValueError), match=r"cannot load|tokenizer has \d+ tokens"):
        model_of(folder, device="cpu").align(photo, ["dog"])


# ---- single files, and diffusers' own options ----


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny pipeline as one file, and as the folder that describes it."""
    pipe, folder = tiny.sd1(), tmp_path_factory.mktemp("single")
    save_file(original_state(pipe), folder / "tiny.safetensors")
    pipe.save_pretrained(folder / "described")
    return pipe, folder / "tiny.safetensors", folder / "described"


def test_a_single_file_holds_the_same_model(checkpoint, photo):
    pipe, file, described = checkpoint
    model = pa.load(file, config=described, device="cpu")
    assert model.name == str(file)
    for name in ("unet", "vae", "text_encoder"):
        ours, theirs = (getattr(p, name).state_dict() for p in (model.pipe, pipe))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    found, expected = (
        m.align(photo, ["dog", "cat"], config=TWO, method="elbo") for m in (model, pa.load(pipe))
    )
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=1e-4)


def test_single_files_are_explained(checkpoint, tmp_path):
    _, file, _ = checkpoint
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors' is missing"):
        pa.load(tmp_path / "absent.safetensors")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is no checkpoint"):
        pa.load(tmp_path / "empty.safetensors")
    # What describes such weights is on the hub, which is not reached here.
    with pytest.raises(OSError, match=r"stable-diffusion-v1-5.* is not to be had"):
        pa.load(file)


def test_options_as_people_know_them(checkpoint, tmp_path):
    pipe, _, folder = checkpoint
    for name in ("torch_dtype", "dtype"):
        model = pa.load(folder, device="cpu", **{name: torch.bfloat16})
        assert (model.pipe.unet.dtype, model.pipe.vae.dtype) == (torch.bfloat16, torch.float32)
    with pytest.raises(ValueError, match=r"dtype is 'float32' and torch_dtype .*; allowed: one"):
        pa.load(folder, dtype="float32", torch_dtype=torch.bfloat16)
    pipe.save_pretrained(tmp_path, variant="fp16")
    assert pa.load(tmp_path, device="cpu", variant="fp16").backbone.family == "sd"
    with pytest.raises(OSError, match="cannot load"):
        pa.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("text_encoder/model", "position_embedding.weight"),
        ("unet/diffusion_pytorch_model", "conv_in.weight"),
        ("vae/diffusion_pytorch_model", "conv_in.bias"),
    ],
)
def test_missing_tensors_are_named(sd1_folder, tmp_path, part, name):
    """The libraries would fill them with random numbers, or leave them without any."""
    shutil.copytree(sd1_folder, tmp_path / "model")
    path = tmp_path / "model" / f"{part}.safetensors"
    weights = load_file(path)
    (lost,) = [key for key in weights if key.endswith(name) and "decoder" not in key]
    save_file({k: v for k, v in weights.items() if k != lost}, path, {"format": "pt"})
    with pytest.raises(OSError, match=rf"files of \w+ lack {re.escape(lost)}; they are damaged"):
        load_backbone(tmp_path / "model", "cpu")
