"""SANA, beyond what every family must do."""

import copy

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SanaSprintPipeline, SCMScheduler

import pixalign as pa
import zoo
from pixalign.backbones import wrap
from pixalign.backbones.load import FAMILIES

CALL = {"num_inference_steps": 2, "output_type": "latent", "height": 64, "width": 64}
CALL |= {"use_resolution_binning": False}


@pytest.fixture(scope="module")
def pipe():
    return zoo.built("sana")


def test_guidance_leads_away_from_a_text_without_instruction(pipe):
    backbone = wrap(pipe)
    *_, embeds, mask = pipe.encode_prompt([""], True)
    empty = backbone.unconditional()
    assert torch.equal(empty.embeds, embeds)
    assert torch.equal(empty.mask, mask.bool())
    instructed = backbone.encode_text([""])
    assert instructed.embeds.shape == empty.embeds.shape
    assert not torch.equal(instructed.embeds, empty.embeds)


def test_words_are_found_up_to_the_last_column(pipe):
    backbone, words = wrap(pipe), 299  # behind the start token
    text = "  " + "dog " * (words - 1) + "CAT"
    start = text.index("CAT")
    assert backbone.fits(text)
    assert backbone.encode_text([text]).mask.all()
    assert backbone.columns(text, [((start, start + 3),)], 300) == ((299,),)
    assert backbone.columns(text, [((2, 5),)], 300) == ((1,),)
    assert not backbone.fits(text + " a")


def test_latents_are_the_autoencoders_own(pipe):
    backbone = wrap(pipe)
    pixels = torch.rand(1, 3, 64, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        latents = pipe.vae.encode(pixels).latent * pipe.vae.config.scaling_factor
        pictures = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample
    found = backbone.encode_image(pixels)
    assert found.shape[1:] == backbone.latent_shape((64, 32))
    torch.testing.assert_close(found, latents)
    torch.testing.assert_close(backbone.decode_latents(found), (pictures / 2 + 0.5).clamp(0, 1))


def test_maps_stay_unrefined(pipe, photo):
    """There is no matrix of self-attention: asking for it once, twice or not at all is the same."""
    first, *others = (
        pa.load(pipe).align(
            photo,
            ["dog", "cat"],
            config=pa.AlignConfig(elbo_steps=2, collect_steps=1, self_attention=refined),
        )
        for refined in ("once", "twice", "up-after-all", "none")
    )
    for other in others:
        assert np.array_equal(first.heatmaps, other.heatmaps)


def test_paths_are_the_schedulers_own(pipe):
    euler = copy.copy(pipe)
    euler.register_modules(scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0))
    for own in (pipe, euler):
        path, scheduler = wrap(own).path(5, (16, 16)), copy.deepcopy(own.scheduler)
        scheduler.set_timesteps(5)
        assert torch.equal(path.steps.time.float(), scheduler.timesteps.float())
        torch.testing.assert_close(path.ends.sigma[:-1], path.steps.sigma[1:])
        torch.testing.assert_close(
            path.steps.sigma.float(), scheduler.sigmas[:-1], atol=2e-6, rtol=0
        )
    with pytest.raises(ValueError, match="steps is 0"):
        wrap(pipe).path(0, (16, 16))


def test_capture_refuses_another_instruction(pipe):
    model = pa.load(pipe)
    refused = pytest.raises(ValueError, match="another complex_human_instruction")
    with refused, model.capture(["dog"]):
        pipe("a dog", complex_human_instruction=["Say: "], **CALL)
    given = pipe.encode_prompt(
        ["a dog"], False, complex_human_instruction=model.backbone.instruction
    )
    with model.capture(["dog"], prompt="a dog") as maps:
        pipe(prompt_embeds=given[0], prompt_attention_mask=given[1], guidance_scale=1.0, **CALL)
    assert len(maps) == 2


def test_sprint_is_refused(pipe):
    parts = dict(pipe.components) | {"scheduler": SCMScheduler()}
    with pytest.raises(ValueError, match="SANA-Sprint cannot be aligned"):
        wrap(SanaSprintPipeline(**parts))
    sprint = {"transformer": "SanaTransformer2DModel", "scheduler": "SCMScheduler"}
    with pytest.raises(ValueError, match="SANA-Sprint"):
        FAMILIES["sana"].recognises(sprint)
