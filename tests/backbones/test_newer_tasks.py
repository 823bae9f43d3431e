"""Generation and editing on families that are read by the tap alone."""

import numpy as np
import pytest
import torch

import pixalign as pa
import tiny
import zoo
from pixalign.backbones import wrap

FEW = ("flux-dev", "flux-schnell", "z-image", "qwen-image")
EDIT = ("a dog and a tree", "a cat and a tree")
STEPS = 2


@pytest.fixture(params=FEW)
def model(request):
    return pa.load(zoo.built(request.param))


def test_plain_pictures_are_the_pipelines(model):
    """From the same noise, with the guidance that the network is told or takes from outside."""
    pipe, backbone = model.pipe, model.backbone
    height, width = backbone.native_size
    told = {} if not backbone.tells_guidance else {"guidance_scale": 2.0}
    guidance = 2.0 if told else 1.0
    if backbone.family == "z-image":
        told = {"guidance_scale": 0.0}
    made = model.generate("a red dog", method="plain", steps=STEPS, seed=3, guidance=guidance)
    noise = torch.randn(1, *backbone.latent_shape((height, width)),
                        generator=torch.Generator().manual_seed(3))  # fmt: skip
    latents = backbone.pack(noise) if backbone.packed else noise
    theirs = pipe(
        prompt=["a red dog"], latents=latents, num_inference_steps=STEPS, height=height,
        width=width, output_type="pil", **told,
    ).images[0]  # fmt: skip
    ours, expected = (np.asarray(picture, dtype=int) for picture in (made.image, theirs))
    assert np.abs(ours - expected).max() <= 2


def test_neglected_entities_weigh_more(model):
    made = model.generate(
        "a red dog and a hot tree", entities=["red dog", "hot tree"], steps=STEPS, seed=1
    )
    assert made.weights.shape == (STEPS, 2)
    assert (made.weights.max(1) == np.float32(1.2)).all()
    assert (made.weights.min(1) == 1).all()
    again = model.generate(
        "a red dog and a hot tree", entities=["red dog", "hot tree"], steps=STEPS, seed=1
    )
    assert made.image == again.image


def test_without_strength_nothing_is_changed(model):
    """Also where the network is told its guidance, and takes none from outside."""
    how = {"entities": ["red dog", "hot tree"], "steps": STEPS, "seed": 1, "guidance": 3.0}
    plain = model.generate("a red dog and a hot tree", method="plain", **how)
    assert model.generate("a red dog and a hot tree", strength=1.0, **how).image == plain.image


@pytest.mark.parametrize("method", ["attend-excite", "syngen"])
def test_what_a_family_lacks_is_said(model, method):
    with pytest.raises(ValueError, match=f"{method} reads a UNet's cross-attention"):
        model.generate("a red dog", entities=["red dog"], method=method, steps=1)
    with pytest.raises(ValueError, match="diffsegmenter reads a UNet's"):
        model.edit(tiny.photo(64, 64), *EDIT, method="diffsegmenter", steps=1, inversion="ddim")


@pytest.mark.parametrize("method", ["ptp", "elbo", "dense"])
def test_edits(model, method):
    """Several at once, of prompts of different length, are what each is alone; none is none."""
    picture = tiny.photo(64, 64)
    how = {"method": method, "steps": STEPS, "inversion": "ddim", "entities": ["dog"]}
    edited = model.edit(picture, *EDIT, **how)
    assert edited.edited != edited.reconstruction
    same = model.edit(picture, EDIT[0], EDIT[0], **how)
    assert same.edited == same.reconstruction
    sources, targets = [EDIT[0], "a hot dog"], [EDIT[1], "a hot cat, a red car and a tree"]
    together = model.edit(picture, sources, targets, **how)
    alone = np.asarray(edited.edited, dtype=int)
    assert np.abs(np.asarray(together[0].edited, dtype=int) - alone).max() <= 3


def test_null_text_moves_towards_the_picture():
    model = pa.load(zoo.built("qwen-image"))
    picture = tiny.photo(64, 64)
    found = {
        inversion: model.edit(picture, *EDIT, method="ptp", steps=STEPS, inversion=inversion)
        for inversion in ("ddim", "null-text")
    }
    psnr = {name: edit.figures["psnr_vae"] for name, edit in found.items()}
    assert psnr["null-text"] > psnr["ddim"]


def test_the_blank_text_fills_every_column():
    backbone = wrap(zoo.built("qwen-image"))
    empty = backbone.encode_text([""]).embeds[0]
    blank = backbone.blank(len(empty) + 3)
    assert torch.equal(blank[: len(empty)], empty)
    torch.testing.assert_close(blank[-1], empty.mean(0))
    assert torch.equal(backbone.blank(2), empty[:2])
