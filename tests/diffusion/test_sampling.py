"""Plain sampling is what diffusers' own pipelines compute, on every family."""

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler

import tiny
from conftest import FAMILIES
from helpers import model_of
from pixalign.backbones import wrap
from pixalign.core.batching import BatchSize
from pixalign.core.values import TextCondition
from pixalign.diffusion.sampling import Sampler, guided, initial_noise, picture_size, to_pictures

PROMPT = "a photo of dog and red car"


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_pictures_are_the_pipelines_own(name):
    pipe = tiny.BUILDERS[name]()
    backbone = wrap(pipe)
    if backbone.objective != "flow":
        pipe.scheduler = DDIMScheduler.from_config(
            pipe.scheduler.config, timestep_spacing="trailing", set_alpha_to_one=False,
            clip_sample=False, rescale_betas_zero_snr=False,
        )  # fmt: skip
    call = {"num_inference_steps": 5, "guidance_scale": 4.0, "output_type": "np"}
    height, width = backbone.native_size
    noise = initial_noise(backbone, [3], (height, width))
    expected = pipe(PROMPT, latents=noise, height=height, width=width, **call).images[0]

    made = model_of(pipe).generate(PROMPT, method="plain", seed=3, steps=5, guidance=4.0)

    assert made.image.size == (width, height)
    found = np.asarray(made.image, dtype=np.float32) / 255
    np.testing.assert_allclose(found, expected, atol=2e-2)
    assert np.abs(found - expected).mean() < 3e-3


@pytest.mark.parametrize("name", ["sdxl", "sd3"])
def test_empty_prompts_are_the_pipelines_own(name, pipeline):
    backbone = wrap(pipeline(name))
    found = backbone.unconditional()
    prompts = ("dog",) if name == "sdxl" else ("dog", None, None)
    encode = backbone.pipe.encode_prompt
    _, embeds, _, pooled = encode(*prompts, do_classifier_free_guidance=True)
    torch.testing.assert_close(found.embeds, embeds)
    torch.testing.assert_close(found.pooled, pooled)


def test_noise_depends_on_the_seed_alone(sd1):
    backbone = wrap(sd1)
    both = initial_noise(backbone, [5, 6], (64, 128))
    assert both.shape == (2, 4, 64 // backbone.vae_factor, 128 // backbone.vae_factor)
    assert torch.equal(both[1], initial_noise(backbone, [6], (64, 128))[0])


def test_many_rows_go_in_batches_and_come_back_the_same(wide):
    backbone = wrap(wide("sd1"))
    z = torch.randn(5, 4, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prompts = ["dog", "a cat", "tree", "a red car", "a"]
    texts = backbone.encode_text(prompts)
    whole, parts = (Sampler(backbone, prompts, 3, 1.0, BatchSize(size)) for size in (5, 2))
    expected = whole.output(1, z, texts)
    torch.testing.assert_close(parts.output(1, z, texts), expected)
    torch.testing.assert_close(Sampler(backbone, prompts, 3).output(1, z, texts), expected)


def test_the_loop_goes_down_and_up_and_calls_its_hooks(wide):
    backbone, calls = wrap(wide("sd1")), []
    sampler = Sampler(backbone, ["dog", "cat"], 4)
    z, noise = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0)).double()

    def noted(name):
        return lambda index, latents: calls.append((name, index)) or latents

    def output(index, latents):
        calls.append(("output", index))
        return noise

    there = sampler.run(z, output, before=noted("before"), after=noted("after"))
    steps = [(name, index) for index in range(4) for name in ("before", "output", "after")]
    assert calls == steps
    back = sampler.run(there, output, backwards=True)
    assert calls[len(steps) :] == [("output", index) for index in (3, 2, 1, 0)]
    torch.testing.assert_close(back, z)  # the same output leads the same way


@pytest.mark.parametrize("own", [False, True])
def test_guided_outputs_are_of_both_texts(wide, own):
    backbone = wrap(wide("sdxl"))
    empty, texts = backbone.unconditional(), backbone.encode_text(["dog", "a red car"])
    z = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    embeds = torch.randn(3, *texts.embeds.shape, generator=torch.Generator().manual_seed(1))
    nothing = empty.repeated(2)
    if own:
        nothing = TextCondition(embeds[1].to(nothing.embeds), nothing.pooled)
    steps = backbone.schedule.path(3).at(1, 2)
    away = backbone.predict(z, steps, nothing)
    expected = away + 4.0 * (backbone.predict(z, steps, texts) - away)
    for batch_size in (None, BatchSize(1), BatchSize(3)):
        sampler = Sampler(backbone, ["dog", "a red car"], 3, 4.0, batch_size)
        sampler.unconditional = embeds.__getitem__ if own else None
        torch.testing.assert_close(sampler.guided(1, z), expected)


def test_guidance():
    full, empty = torch.tensor([3.0]), torch.tensor([1.0])
    assert guided(full, empty, 1.0) == full
    assert guided(full, empty, 0.0) == empty
    assert guided(full, empty, 2.0) == 5.0


def test_sizes(sd1):
    backbone = wrap(sd1)
    multiple = backbone.size_multiple
    assert picture_size(backbone, None) == backbone.native_size
    assert picture_size(backbone, (multiple, 3 * multiple)) == (multiple, 3 * multiple)
    for bad in [(multiple + 1, multiple), (0, multiple), (multiple, 10**6 * multiple)]:
        with pytest.raises(ValueError, match=f"size is {bad[0]}x{bad[1]}; allowed: multiples of"):
            picture_size(backbone, bad)


def test_pictures_of_pixels():
    pixels = torch.zeros(2, 3, 4, 6)
    pixels[1, 0] = 1.0
    first, second = to_pictures(pixels)
    assert first.size == (6, 4)
    assert second.getpixel((0, 0)) == (255, 0, 0)


def test_decoding_is_the_vaes_own(sd1):
    backbone = wrap(sd1)
    latents = backbone.encode_image(torch.rand(1, 3, 64, 64) * 2 - 1)
    with torch.no_grad():
        scaled = latents / sd1.vae.config.scaling_factor
        expected = (sd1.vae.decode(scaled)[0] / 2 + 0.5).clamp(0, 1)
    torch.testing.assert_close(backbone.decode_latents(latents), expected)


def test_half_precision_pipelines_decode_in_float32():
    pipe = tiny.BUILDERS["sd1"]()
    latents = torch.randn(1, 4, 16, 16)
    expected = wrap(pipe).decode_latents(latents)
    pipe.vae.half()
    found = wrap(pipe).decode_latents(latents)
    assert pipe.vae.dtype == torch.float16
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0)
