"""Word maps of running pipelines."""

import numpy as np
import pytest
import torch
from diffusers import (
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPAGPipeline,
    StableDiffusionXLImg2ImgPipeline,
)

import pixalign as pa
import tiny
from helpers import assert_same, fingerprint
from pixalign.attention import AttentionReader
from pixalign.backbones import wrap

CALL = {"num_inference_steps": 3, "output_type": "np"}


def noise():
    return torch.Generator().manual_seed(0)


def captured(pipe, words, *prompts, text=None, **options):
    """The maps of one call, or of one for each prompt."""
    with pa.load(pipe).capture(words, text) as maps:
        for prompt in prompts:
            pipe(prompt, **{"generator": noise(), **CALL, **options})
    return maps


def test_maps_over_the_steps_on_every_family(any_pipe):
    plain = any_pipe("a dog and a cat", generator=noise(), **CALL).images
    before = fingerprint(wrap(any_pipe).denoiser)
    with pa.load(any_pipe).capture(words=["dog", "cat"]) as maps:
        observed = any_pipe("a dog and a cat", generator=noise(), **CALL).images
    after = any_pipe("a dog and a cat", generator=noise(), **CALL).images

    assert np.array_equal(plain, observed)
    assert np.array_equal(plain, after)
    assert_same(before, fingerprint(wrap(any_pipe).denoiser))
    assert "encode_prompt" not in vars(any_pipe)
    steps = maps["dog"]
    assert len(maps) == len(maps.timesteps) == len(steps) >= 3
    assert maps.timesteps == sorted(maps.timesteps, reverse=True)
    assert steps.shape[1] == 1
    assert steps.dtype == torch.float32
    assert (steps > 0).all()
    assert not torch.equal(maps["dog"], maps["cat"])
    heatmaps = maps.heatmaps((40, 60))
    assert heatmaps.shape == (1, 2, 40, 60)
    assert heatmaps.amin() == 0
    assert heatmaps.amax() == 1


@pytest.mark.parametrize("guidance", [0.0, 7.5])
def test_only_the_conditional_half_is_read(pipeline, guidance):
    """Against a pass of our own with the same latents and the conditional text alone."""
    pipe = pipeline("sd2-base")
    unet, seen = pipe.unet, []
    hook = unet.register_forward_pre_hook(
        lambda module, args: seen.append((args[0].clone(), int(args[1])))
    )
    call = {"negative_prompt": "a dog, a dog, a dog", "guidance_scale": guidance, **CALL}
    with hook, pa.load(pipe).capture(["dog"], cross_weights="uniform") as maps:
        pipe("a red dog", generator=noise(), **call)
    assert len(seen[0][0]) == (2 if guidance else 1)

    backbone = wrap(pipe)
    text = backbone.encode_text(["a red dog"])
    for index, (latents, timestep) in enumerate(seen):
        reader = AttentionReader(backbone.sites)
        reader.columns = torch.eye(77)[None, :, 3:4]  # start, a, red, dog
        with reader.attached(backbone):
            backbone.predict(latents[-1:], backbone.schedule.at_indices([timestep]), text)
        layers = [
            torch.nn.functional.interpolate(layer, (24, 24), mode="bilinear")
            for layer in reader.cross.values()
        ]
        expected = torch.stack(layers).mean(0)[0, 0]
        torch.testing.assert_close(maps["dog"][index, 0], expected, atol=1e-6, rtol=1e-4)


def test_batches_of_prompts_and_images(pipeline):
    pipe = pipeline("sd1")
    prompts = ["a red dog", "two hot cat, a dog"]
    maps = captured(pipe, ["dog", "cat"], prompts, num_images_per_prompt=2)
    assert maps["dog"].shape[1] == 4
    assert (maps["cat"][:, :2] == 0).all()  # the first prompt has no cat
    assert (maps["cat"][:, 2:] > 0).all()
    assert not torch.equal(maps["dog"][:, 0], maps["dog"][:, 1])
    assert (maps.heatmaps()[0, 1] == 0).all()


def test_batch_equals_single_calls(pipeline):
    pipe = pipeline("sdxl")
    latents = torch.randn(2, 4, 32, 32, generator=noise())
    prompts = ["a dog", "a tree and a red dog"]
    together = captured(pipe, ["dog"], prompts, latents=latents)
    for index, prompt in enumerate(prompts):
        alone = captured(pipe, ["dog"], prompt, latents=latents[index : index + 1])
        torch.testing.assert_close(
            together["dog"][:, index], alone["dog"][:, 0], atol=1e-4, rtol=1e-3
        )


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        ("sd1", "sd", StableDiffusionImg2ImgPipeline),
        ("sdxl", "sdxl", StableDiffusionXLImg2ImgPipeline),
    ],
)
def test_image_to_image(pipeline, name, family, kind):
    options = {"requires_safety_checker": False} if name == "sd1" else {}
    pipe = kind(**pipeline(name).components, **options)
    pipe.set_progress_bar_config(disable=True)
    assert wrap(pipe).family == family
    call = {"image": tiny.photo(128, 64), "strength": 0.6, "num_inference_steps": 5}
    height, width = captured(pipe, ["dog"], "a dog", **call)["dog"].shape[-2:]
    assert width == 2 * height


def test_not_square(any_pipe):
    height, width = captured(any_pipe, ["dog"], "a dog", height=64, width=160)["dog"].shape[-2:]
    assert width / height == 2.5


def test_sides_that_halve_unevenly(pipeline):
    """Only head-mean maps of the wanted columns are kept, one per step."""
    maps = captured(pipeline("sd1"), ["dog"], "a dog", height=72, width=104)  # latents 18 x 26
    assert maps["dog"].shape[-2:] == (18, 26)
    assert maps.steps.numel() == len(maps) * 18 * 26


def test_embeddings_need_the_prompt(pipeline):
    pipe = pipeline("sd1")
    embeds, negative = pipe.encode_prompt("a dog", "cpu", 1, True)
    call = {"prompt_embeds": embeds, "negative_prompt_embeds": negative}
    with pytest.raises(ValueError, match="only embeddings"):
        captured(pipe, ["dog"], None, **call)
    by_embeds = captured(pipe, ["dog"], None, text="a dog", **call)
    by_text = captured(pipe, ["dog"], "a dog")
    torch.testing.assert_close(by_embeds["dog"], by_text["dog"])


def test_words_inside_longer_words_are_left_to_them(pipeline):
    pipe = pipeline("sd1")
    both, alone = (
        captured(pipe, words, "a dog and a hot dog") for words in (["dog", "hot dog"], ["dog"])
    )
    assert not torch.allclose(both["dog"], alone["dog"])  # alone, both occurrences count


@pytest.mark.parametrize("name", ["sd1", "sdxl", "sd3-t5"])
def test_pipeline_is_restored_after_an_error(pipeline, name):
    pipe = pipeline(name)
    before = fingerprint(wrap(pipe).denoiser)

    def stop(pipe, step, timestep, kwargs):
        raise RuntimeError("stopped half way")

    with pytest.raises(RuntimeError, match="half way"), pa.load(pipe).capture(["dog"]) as maps:
        pipe("a dog", callback_on_step_end=stop, **CALL)
    assert_same(before, fingerprint(wrap(pipe).denoiser))
    assert "encode_prompt" not in vars(pipe)
    assert len(maps) == 1  # what was captured until then is kept


def test_missing_word_is_named(pipeline):
    message = r"word 'zebra' does not occur on its own in \['a dog'\]"
    with pytest.raises(ValueError, match=message):
        captured(pipeline("sd1"), ["dog", "zebra"], "a dog")


def test_second_prompts_are_refused(pipeline):
    with pytest.raises(ValueError, match="leave prompt_2 out"):
        captured(pipeline("sdxl"), ["dog"], "a dog", prompt_2="a cat")


def test_nothing_captured_is_said(pipeline):
    maps = captured(pipeline("sd1"), ["dog"])
    with pytest.raises(ValueError, match="nothing captured"):
        _ = maps.steps
    with pytest.raises(KeyError, match="'cat' was not captured"):
        maps["cat"]


def test_second_call_starts_anew(pipeline):
    assert len(captured(pipeline("sd2-v"), ["dog"], "a dog", "a dog and a car")) == 3


def test_skip_layer_guidance_passes_are_left_out(pipeline):
    all_the_way = {"skip_layer_guidance_start": 0.0, "skip_layer_guidance_stop": 1.0}
    maps = captured(pipeline("sd3"), ["dog"], "a dog", skip_guidance_layers=[1], **all_the_way)
    assert len(maps) == 3


def test_freed_text_encoders(pipeline):
    """Embeddings are passed because the text encoders were freed: the tokenizer is enough."""
    whole = pipeline("sd3-t5")
    embeds, _, pooled, _ = whole.encode_prompt("a dog", None, None)
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3")
    freed = type(whole)(**whole.components | dict.fromkeys(encoders))
    freed.set_progress_bar_config(disable=True)
    call = {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled, "guidance_scale": 0.0}
    maps = captured(freed, ["dog"], None, text="a dog", **call)
    expected = captured(whole, ["dog"], "a dog", guidance_scale=0.0)
    torch.testing.assert_close(maps["dog"], expected["dog"])


def test_a_word_cut_off_in_one_prompt_of_a_batch(pipeline):
    maps = captured(pipeline("sd1"), ["dog"], ["a dog", "a " * 80 + "dog"])
    assert (maps["dog"][:, 0] > 0).all()
    assert (maps["dog"][:, 1] == 0).all()


def test_passes_of_other_guidance_are_read_too(pipeline):
    """Perturbed-attention guidance runs three rows a picture; the prompt's own is found."""
    options = {"requires_safety_checker": False, "pag_applied_layers": "mid"}
    pipe = StableDiffusionPAGPipeline(**pipeline("sd1").components, **options)
    pipe.set_progress_bar_config(disable=True)
    processors = dict(pipe.unet.attn_processors)
    maps = captured(pipe, ["dog"], "a dog", pag_scale=2.0)
    pipe.unet.set_attn_processor(processors)
    plain = captured(pipeline("sd1"), ["dog"], "a dog")
    assert maps["dog"].shape == plain["dog"].shape
    torch.testing.assert_close(maps["dog"][0], plain["dog"][0])  # later steps are guided otherwise


def test_fused_projections_are_read():
    pipe = tiny.sd1()
    plain = captured(pipe, ["dog"], "a dog")
    pipe.fuse_qkv_projections(vae=False)
    fused = captured(pipe, ["dog"], "a dog")
    torch.testing.assert_close(fused["dog"], plain["dog"], atol=1e-5, rtol=1e-3)
