"""Inversion against plain loops, torch's Adam and pictures of the lab; its cache."""

import dataclasses
import io
import os
import warnings

import numpy as np
import pytest
import torch

import tiny
from helpers import assert_same, fingerprint, model_of
from pixalign.backbones import wrap
from pixalign.backbones.gradients import gradients_to_inputs
from pixalign.core.batching import BatchSize
from pixalign.core.values import TextCondition
from pixalign.diffusion.objectives import OBJECTIVES
from pixalign.diffusion.sampling import Sampler
from pixalign.editing import cache
from pixalign.editing.cache import InversionCache, inversion_keys, inversions_of
from pixalign.editing.inversion import (
    Inversion,
    InversionSettings,
    ddim_trajectory,
    invert_pictures,
    null_text,
    psnr,
    reconstruct,
    reconstruction_figures,
)
from pixalign.scenes.render import render
from pixalign.scenes.sample import full_captions, sample_scenes

FEW = InversionSettings(steps=3, guidance=4.0, inner_steps=3)


def begun(backbone, count=2, scales=(1.0,)):
    """A sampler with prompts, latents that a tiny random network has never seen, the way there."""
    generator = torch.Generator().manual_seed(0)
    channels = backbone.pipe.vae.config.latent_channels
    latents = torch.randn(count, channels, 8, 8, generator=generator)
    latents *= torch.tensor(scales)[:, None, None, None]
    prompts = [f"a photo of dog {number}" for number in range(count)]
    sampler = Sampler(backbone, prompts, FEW.steps, FEW.guidance, BatchSize())
    return sampler, latents, ddim_trajectory(sampler, latents)


def test_trajectories_go_up_the_path(any_pipe):
    backbone = wrap(any_pipe)
    sampler, latents, found = begun(backbone)
    path = sampler.path
    assert found.shape == (4, *latents.shape)
    assert torch.equal(found[-1], latents)
    for index in (2, 1, 0):
        output = backbone.predict(found[index + 1], path.at(index, 2), sampler.texts)
        objective = backbone.objective
        if objective == "velocity":
            output = OBJECTIVES[objective].to_epsilon(output, found[index + 1], path.at(index, 2))
            objective = "epsilon"
        # Where the network says the same on the way down, the step down is the way back.
        back = path.advance(objective, output, found[index], index)
        torch.testing.assert_close(back, found[index + 1], atol=1e-3, rtol=1e-3)


def plain_null_text(sampler, trajectory, settings):
    """The published loop for one picture, with torch's optimiser."""
    backbone, texts, path = sampler.network, sampler.texts, sampler.path
    empty = backbone.unconditional()
    embeds, z, found = empty.embeds.float(), trajectory[0], []
    for index in range(len(path)):
        place = index * 50 / settings.steps
        embeds = embeds.clone().requires_grad_()
        optimizer = torch.optim.Adam([embeds], lr=1e-2 * (1 - place / 100))
        steps = path.at(index, 1)
        towards = backbone.predict(z, steps, texts)
        for _ in range(settings.inner_steps):
            away = backbone.output(z, steps, TextCondition(embeds, empty.pooled))
            there = away + settings.guidance * (towards - away)
            there = path.advance(backbone.objective, there, z, index)
            loss = torch.nn.functional.mse_loss(there, trajectory[index + 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < settings.tolerance + place * settings.growth:
                break
        embeds = embeds.detach()
        away = backbone.predict(z, steps, TextCondition(embeds, empty.pooled))
        z = path.advance(backbone.objective, away + settings.guidance * (towards - away), z, index)
        found.append(embeds)
    return torch.stack(found)


@pytest.mark.parametrize("tolerance", [1e-5, 0.3])
def test_null_text_is_the_published_loop(sd1, tolerance):
    backbone = wrap(sd1)
    settings = dataclasses.replace(FEW, tolerance=tolerance)
    sampler, _, trajectory = begun(backbone, count=1)
    found = null_text(sampler, trajectory, settings)
    expected = plain_null_text(sampler, trajectory, settings)

    assert found.shape == (3, 1, *sampler.texts.embeds.shape[1:])
    # Adam moves what has hardly a gradient as far as the rest, in a direction that is rounding.
    assert ((found - expected).abs() < 1e-4).float().mean() > 0.99
    assert (found[0] - backbone.unconditional().embeds).abs().max() > 1e-3


def test_pictures_stop_on_their_own(wide):
    """Two together are what they are alone, in float64 to the last bit that counts."""
    backbone = wrap(wide("sd1"))
    sampler, _, trajectory = begun(backbone, scales=(1.0, 3.0))
    settings = dataclasses.replace(FEW, tolerance=0.05)
    both = null_text(sampler, trajectory, settings)
    sampler.batch_size = BatchSize(1)
    one_by_one = null_text(sampler, trajectory, settings)
    torch.testing.assert_close(both, one_by_one, atol=1e-5, rtol=1e-4)
    sampler.texts = sampler.texts[torch.tensor([1])]
    alone = null_text(sampler, trajectory[:, 1:], settings)
    torch.testing.assert_close(both[:, 1:], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["sd2-v", "sdxl", "sd3.5"])
def test_every_family_stays_on_its_trajectory(pipeline, name):
    backbone = wrap(pipeline(name))
    sampler, latents, trajectory = begun(backbone)
    found = null_text(sampler, trajectory, dataclasses.replace(FEW, inner_steps=5))
    before = (sampler.run(trajectory[0]) - latents).square().mean()
    sampler.unconditional = found.__getitem__
    assert (sampler.run(trajectory[0]) - latents).square().mean() < 0.9 * before


def test_the_network_gets_its_flags_back(any_pipe):
    backbone = wrap(any_pipe)
    network = backbone.denoiser
    before = fingerprint(network)
    flags = [(weight.requires_grad, weight.grad) for weight in network.parameters()]
    sampler, _, trajectory = begun(backbone, count=1)
    null_text(sampler, trajectory, dataclasses.replace(FEW, inner_steps=1))

    assert flags == [(weight.requires_grad, weight.grad) for weight in network.parameters()]
    assert not network.is_gradient_checkpointing
    assert_same(before, fingerprint(network))


def test_flags_come_back_as_they_were_also_after_an_error():
    network = tiny.sd1().unet
    some = next(network.parameters())
    some.requires_grad_(False)
    network.mid_block.gradient_checkpointing = True
    network.mid_block._gradient_checkpointing_func = function = lambda *args: None
    before = fingerprint(network)

    def fail():
        assert network.is_gradient_checkpointing
        assert not any(weight.requires_grad for weight in network.parameters())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), gradients_to_inputs(network, checkpointing=True):
        fail()
    assert_same(before, fingerprint(network))
    assert network.mid_block._gradient_checkpointing_func is function
    assert [m.gradient_checkpointing for m in network.down_blocks] == [False] * 4
    assert network.mid_block.gradient_checkpointing
    assert not some.requires_grad
    assert sum(not weight.requires_grad for weight in network.parameters()) == 1


@pytest.mark.parametrize("checkpointing", [True, False])
def test_checkpointing_acts_in_eval_mode(sd1, checkpointing):
    """Layers run a second time on the way back: what they computed was forgotten."""
    backbone, ran = wrap(sd1), []
    sampler, latents, _ = begun(backbone, count=1)
    layer = sd1.unet.up_blocks[-1].resnets[0]
    handle = layer.register_forward_pre_hook(lambda *_: ran.append(1))
    z = latents.clone().requires_grad_()
    with gradients_to_inputs(sd1.unet, checkpointing=checkpointing):
        backbone.output(z, sampler.path.at(0, 1), sampler.texts).sum().backward()
    handle.remove()
    assert not sd1.unet.training
    assert z.grad is not None
    assert len(ran) == (2 if checkpointing else 1)


def test_a_large_tolerance_takes_one_step(sd1):
    sampler, _, trajectory = begun(wrap(sd1))
    ways = ({"tolerance": 1e9}, {"inner_steps": 1})
    found = [null_text(sampler, trajectory, dataclasses.replace(FEW, **way)) for way in ways]
    assert torch.equal(*found)


def test_settings_follow_the_way_not_the_count():
    fifty, ten = InversionSettings(), InversionSettings(steps=10)
    assert fifty.at(0) == ten.at(0) == (1e-2, 1e-5)
    assert fifty.at(25) == pytest.approx((7.5e-3, 1e-5 + 50e-5))
    assert ten.at(5) == pytest.approx(fifty.at(25))
    for wrong, match in (
        ({"method": "exact"}, "inversion is 'exact'"),
        ({"inner_steps": 0}, "inner_steps is 0; allowed: 1 or more"),
        ({"rate": -1}, "rate is -1; allowed: 0 or more"),
    ):
        with pytest.raises(ValueError, match=match):
            InversionSettings(**wrong)


def test_psnr_is_in_decibels():
    pictures = torch.zeros(2, 3, 4, 4)
    others = pictures.clone()
    others[0] += 0.1
    assert psnr(pictures, others)[0] == pytest.approx(20)
    assert psnr(pictures, others)[1] == float("inf")


# ---- on the lab ----


@pytest.fixture(scope="module")
def lab():
    batch = sample_scenes("test", 1, 2)
    return model_of(device="cpu"), render(batch, 64).images * 2 - 1, full_captions(batch)


def test_ddim_without_guidance_leads_back(lab):
    model, pixels, prompts = lab
    backbone = model.backbone
    sampler = Sampler(backbone, prompts, 10, 1.0, BatchSize())
    latents = torch.cat([backbone.encode_image(one[None]) for one in pixels])
    noise, expected = ddim_trajectory(sampler, latents)[0], backbone.decode_latents(latents)
    found = psnr(backbone.decode_latents(sampler.run(noise)), expected)
    wrong = psnr(backbone.decode_latents(sampler.run(noise.flip(0))), expected)
    assert found.min() > 20
    assert found.min() > wrong.max() + 3


def test_null_text_reconstructs_what_guidance_loses(lab):
    model, pixels, prompts = lab
    both, figures = [], []
    for method in ("ddim", "null-text"):
        how = InversionSettings(method, 5, 7.5, 5)
        both.append(invert_pictures(model, pixels, prompts, how))
        made = reconstruct(model, both[-1], prompts, how)
        figures.append(reconstruction_figures(model.backbone, pixels, made))
    for row, (one, other) in enumerate(zip(*both, strict=True)):
        assert torch.equal(one.noise, other.noise)
        assert one.unconditional is None
        assert figures[1][row]["psnr_vae"] > figures[0][row]["psnr_vae"] + 2
        assert figures[1][row]["vae"] == figures[0][row]["vae"]


# ---- kept on disk ----


@pytest.fixture
def picture():
    return tiny.photo(64, 32)


QUICK = InversionSettings(steps=2, inner_steps=1)
DDIM = dataclasses.replace(QUICK, method="ddim")


def test_inversions_are_kept_and_reused(sd1, picture, tmp_path, monkeypatch):
    model, kept = model_of(sd1), InversionCache(tmp_path / "new")
    other = tiny.photo(64, 32, seed=1)
    first = inversions_of(model, [picture], ["a dog"], QUICK, kept)
    assert [file.suffix for file in kept.folder.iterdir()] == [".npz"]

    both = inversions_of(model, [other, picture], ["a cat", "a dog"], QUICK, kept)
    assert torch.equal(both[1].noise, first[0].noise)
    assert torch.equal(both[1].unconditional, first[0].unconditional)
    monkeypatch.setattr(cache, "invert_pictures", None)  # nothing is left to do
    again = inversions_of(model, [other], ["a cat"], QUICK, kept)
    assert torch.equal(again[0].noise, both[0].noise)
    assert len(list(kept.folder.iterdir())) == 2


def test_those_unused_longest_make_room(tmp_path):
    kept = InversionCache(tmp_path, 0)
    foreign = tmp_path / "letter.json"
    foreign.write_text("not ours")
    keys = [letter * 64 for letter in "abc"]
    for age, key in zip((3, 2, 1), keys, strict=True):
        kept.write(key, Inversion(torch.zeros(1, 4, 8, 8), None))
        os.utime(tmp_path / f"{key}.npz", (age * -100 + 10**9,) * 2)
    size = (tmp_path / f"{key}.npz").stat().st_size
    assert kept.read(keys[0]) is not None  # used just now

    for room, left in ((None, "abc"), (3 * size, "abc"), (2.5 * size, "ac"), (size, "a"), (0, "")):
        InversionCache(tmp_path, room).shrink()
        assert sorted(path.name[0] for path in tmp_path.iterdir()) == sorted(left + "l")
    assert foreign.read_text() == "not ours"


def test_keys_hold_all_that_counts(sd1, pipeline, picture):
    def key_of(pipe=sd1, picture=picture, prompt="a dog", settings=QUICK, name="m"):
        model = model_of(pipe)
        model.name = name
        (key,) = inversion_keys(model, [picture], [prompt], settings)
        return key

    base = key_of()
    assert base == key_of(picture=picture.copy())
    changed, noisier = tiny.sd1(), tiny.sd1()
    with torch.no_grad():
        next(changed.unet.parameters()).add_(1)
    noisier.scheduler = type(noisier.scheduler).from_config(noisier.scheduler.config, beta_end=0.02)
    others = {
        key_of(picture=picture.transpose(0)),
        key_of(picture=picture.resize((32, 64))),
        key_of(prompt="a cat"),
        key_of(settings=dataclasses.replace(QUICK, guidance=1)),
        key_of(name="n"),
        key_of(tiny.sd1("v_prediction")),
        key_of(pipeline("sd2-base")),
        key_of(changed),
        key_of(noisier),
    }
    assert len(others | {base}) == 10


def test_models_whose_weights_cannot_be_seen_are_not_kept(picture, tmp_path):
    pipe = tiny.sd1()
    model = model_of(pipe)
    seen, pipe.text_encoder = pipe.text_encoder, tiny.sd1().text_encoder.to("meta")
    assert inversion_keys(model, [picture], ["a dog"], DDIM) == []
    pipe.text_encoder = seen
    inversions_of(model, [picture], ["a dog"], DDIM, InversionCache(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_gradients_flow_where_the_caller_switched_them_off(sd1):
    sampler, latents, trajectory = begun(wrap(sd1))
    expected = null_text(sampler, trajectory, FEW)
    with torch.inference_mode():
        trajectory = ddim_trajectory(sampler, latents)
        found = null_text(sampler, trajectory, FEW)
    torch.testing.assert_close(found, expected)


def test_damaged_files_are_made_anew(sd1, picture, tmp_path):
    model, kept = model_of(sd1), InversionCache(tmp_path)

    def made():
        return inversions_of(model, [picture], ["a dog"], DDIM, kept)[0]

    first = made()
    (file,) = tmp_path.iterdir()
    whole, middle = file.read_bytes(), file.stat().st_size // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    other = io.BytesIO()
    np.savez(other, sound=np.zeros(3))
    for damaged in (whole[:middle], flipped, b"", b"{", b"PK", other.getvalue()):
        file.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match="damaged"):
            assert torch.equal(made().noise, first.noise)
        assert file.read_bytes() == whole
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made()


@pytest.mark.parametrize("inside", ["", "kept"])
def test_a_cache_that_cannot_be_written_costs_no_inversion(sd1, picture, tmp_path, inside):
    """A file where the folder should be, or above it: nobody can write there, root included."""
    (tmp_path / "file").write_text("not ours")
    kept = InversionCache(tmp_path / "file" / inside)
    with pytest.warns(RuntimeWarning, match=r"inversions cannot be kept in .*file"):
        (found,) = inversions_of(model_of(sd1), [picture], ["a dog"], DDIM, kept)
    (expected,) = inversions_of(model_of(sd1), [picture], ["a dog"], DDIM)
    assert torch.equal(found.noise, expected.noise)
    assert (tmp_path / "file").read_text() == "not ours"


def test_nothing_is_kept_unless_asked_for(sd1, picture, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert InversionCache.of(None) is InversionCache.of(False) is None
    assert inversions_of(model_of(sd1), [picture], ["a dog"], DDIM)[0].unconditional is None
    assert inversions_of(model_of(sd1), [], [], DDIM, InversionCache.of(True)) == []
    assert not list(tmp_path.iterdir())
    assert InversionCache.of(True).folder == tmp_path / "pixalign" / "inversions"
    assert InversionCache.of(tmp_path) == InversionCache(tmp_path, 2 * 2**30)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert InversionCache.of(True).folder.parts[-3:] == (".cache", "pixalign", "inversions")
