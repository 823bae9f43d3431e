"""What only a GPU can show: half precision, real memory limits, offloading. Run with -m gpu."""

import time

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

import pixalign as pa
import tiny
from conftest import FAMILIES, QUICK
from helpers import model_of
from pixalign.bench.command import run_specs
from pixalign.bench.datasets import open_dataset
from pixalign.methods import METHODS
from pixalign.scenes.atlas import class_names as scene_classes
from pixalign.scenes.write import write_scenes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TEN = ["dog", "cat", "hot dog", "zebra", "car", "tree", "screen", "screen door", "door", "bench"]
CONFIG = pa.AlignConfig(**QUICK)


@pytest.fixture(scope="module")
def big():
    """SD1.5's real sizes with random weights, in float16 on the GPU."""
    torch.manual_seed(0)
    tokenizer = tiny.clip_tokenizer()
    text = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=768, intermediate_size=3072,
        num_hidden_layers=12, num_attention_heads=12,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.device("cuda"):
        unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
        vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            sample_size=512,
        )
        encoder = CLIPTextModel(text)
    pipe = StableDiffusionPipeline(
        vae=vae.eval(), unet=unet.eval(), text_encoder=encoder.eval(), tokenizer=tokenizer,
        scheduler=DDIMScheduler(**tiny.SD_NOISE), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    return pipe.to("cuda", torch.float16)


@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision_agrees_with_float32(pipeline, name, tmp_path, photo):
    pipeline(name).save_pretrained(tmp_path)
    half = model_of(tmp_path, device="cuda", config=CONFIG)
    full = model_of(tmp_path, device="cpu", config=CONFIG)
    classes = ["dog", "zebra", "hot dog"]

    fast, again = (half.align(photo, classes) for _ in range(2))
    exact = full.align(photo, classes)

    assert np.array_equal(fast.heatmaps, again.heatmaps)
    assert np.array_equal(fast.losses, again.losses)
    assert half.backbone.dtype in (torch.float16, torch.bfloat16)
    np.testing.assert_allclose(fast.losses, exact.losses, rtol=0.02)
    plain = pa.AlignConfig.uncalibrated(**QUICK)
    maps, reference = (a.align(photo, classes, config=plain).heatmaps for a in (half, full))
    assert np.corrcoef(maps.ravel(), reference.ravel())[0, 1] > 0.98


def test_float32_on_the_gpu_equals_the_cpu(pipeline, photo, tmp_path):
    pipeline("sd1").save_pretrained(tmp_path)
    gpu, cpu = (
        model_of(tmp_path, device=device, dtype="float32", config=CONFIG)
        for device in ("cuda", "cpu")
    )
    found, expected = (a.align(photo, ["dog", "cat", "car"]) for a in (gpu, cpu))
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=2e-3)


def test_capture_on_the_gpu(tmp_path):
    tiny.sd1().save_pretrained(tmp_path)
    pipe = StableDiffusionPipeline.from_pretrained(tmp_path, dtype=torch.float16).to("cuda")
    noise = torch.randn(1, 4, 32, 32, device="cuda", dtype=torch.float16)
    call = {"latents": noise, "num_inference_steps": 3, "output_type": "np"}
    plain = pipe("a dog", **call).images
    with pa.load(pipe).capture(["dog"]) as maps:
        observed = pipe("a dog", **call).images
    assert np.array_equal(plain, observed)
    assert maps["dog"].device.type == "cpu"


def test_full_size_time_and_memory(big, capsys):
    aligner = model_of(big)
    picture = tiny.photo(640, 480)
    first = aligner.align(picture, TEN)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    again = aligner.align(picture, TEN)
    torch.cuda.synchronize()
    seconds, peak = time.perf_counter() - start, torch.cuda.max_memory_allocated() / 2**30
    with capsys.disabled():
        print(f"\nSD1.5 shape, 10 classes, {torch.cuda.get_device_name()}: ", end="")
        print(f"{seconds:.2f} s from picture to heatmaps, peak {peak:.1f} GiB")
    assert np.array_equal(first.heatmaps, again.heatmaps)
    assert np.isfinite(first.heatmaps).all()
    assert peak < 16


def test_out_of_memory_for_real(big):
    picture = tiny.photo(64, 64)
    config = pa.AlignConfig(elbo_steps=8, collect_steps=2)
    expected = model_of(big, batch_size=8).align(picture, TEN, config=config)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    room = torch.cuda.memory_allocated() + 2.5 * 2**30
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with pytest.warns(RuntimeWarning, match="out of memory with 64 passes"):
            found = model_of(big).align(picture, TEN, config=config)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=5e-3)


def test_offloaded_pipeline(photo, tmp_path):
    tiny.sdxl().save_pretrained(tmp_path)
    expected = model_of(tmp_path, device="cuda", dtype="float32", config=CONFIG)
    pipe = tiny.sdxl()
    pipe.enable_model_cpu_offload()
    offloaded = model_of(pipe, config=CONFIG)
    ours, theirs = (a.align(photo, ["dog", "cat"]) for a in (offloaded, expected))
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)
    pipe.to("cpu", torch.float16)
    pipe.enable_model_cpu_offload()
    half = model_of(pipe, config=CONFIG).align(photo, ["dog", "cat"])
    np.testing.assert_allclose(half.losses, theirs.losses, rtol=0.02)


def test_generator_of_the_gpu(big):
    aligner = model_of(big, config=pa.AlignConfig(elbo_strategy="random", **QUICK))
    picture = tiny.photo(64, 64)
    first, again = (
        aligner.align(picture, ["dog", "cat"], generator=torch.Generator("cuda").manual_seed(1))
        for _ in range(2)
    )
    assert np.array_equal(first.heatmaps, again.heatmaps)


METHOD_OPTIONS = {"ovam-optimized": {"epochs": 3}, "diffseg": {"threshold": 0.03}}


@pytest.mark.parametrize("name", METHODS)
def test_methods_on_the_gpu(name):
    scene = open_dataset("lab", None, "test", 1)[0]
    present = [scene_classes()[label] for label in scene.present]
    more = {}
    if METHODS[name].supervised:
        more["target_masks"] = np.stack([scene.truth == label + 1 for label in scene.present])
    gpu, cpu = (
        METHODS[name](aligner, **METHOD_OPTIONS.get(name, {})).align(scene.image, present, **more)
        for aligner in (model_of(device=device, dtype="float32") for device in ("cuda", "cpu"))
    )
    difference = np.abs(gpu.heatmaps - cpu.heatmaps)
    assert difference.mean() < 0.01, difference.mean()


def test_benchmark_on_the_gpu(tmp_path):
    """lab-sota has every method; its tallies are pixels, and rounding moves a few of them."""
    found = {}
    for device in ("cuda", "cpu"):
        (_, found[device]), *_ = run_specs(
            ["lab-sota"], lambda where: pa.load(device=where, dtype="float32"),
            limit=2, out=tmp_path / device, device=device, show=False,
        )  # fmt: skip
    for name, row in found["cpu"]["rows"].items():
        ours, theirs = (r["oracle"]["miou"] for r in (found["cuda"]["rows"][name], row))
        assert ours == pytest.approx(theirs, abs=1.0), name


@pytest.mark.parametrize("method", ["elbo", "plain", "attend-excite", "syngen"])
def test_pictures_are_drawn_in_half_precision(method):
    options = {"method": method, "entities": ["red dog", "blue taco"], "steps": 4, "count": 2}
    made = pa.load(device="cuda").generate("a photo of red dog, blue taco", **options)
    assert made[0].provenance["model"]["dtype"] == "float16"
    assert np.asarray(made[0].image).std() > 1


@pytest.mark.parametrize("method", ["elbo", "ptp", "diffsegmenter"])
def test_pictures_are_edited(method, tmp_path):
    write_scenes("test", 1, tmp_path, size=128)
    made = pa.load(device="cuda", dtype="float32").edit(
        tmp_path / "00000.png",
        "a photo of taco, chair, high heel",
        "a photo of dog, chair, high heel",
        method=method,
        entities=["taco", "chair", "high heel"],
        steps=6,
    )
    assert made.changes == (("taco", "dog"),)
    assert made.figures["psnr_vae"] > 20
