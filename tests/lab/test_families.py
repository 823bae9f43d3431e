"""The lab's families at toy size: what each trains by, inherits, stores and reads."""

import runpy
import shutil
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from safetensors.torch import load_file

import pixalign as pa
from lab import data
from lab.data import kept_bank, scenes
from lab.denoiser import DenoiserStage
from lab.families import DENOISER, FAMILIES
from lab.families.base import copy_matching
from lab.families.towers import inherit_words
from lab.networks import SCHEDULER, load_pipeline, load_vae
from lab.recipe import complete
from lab.vocabulary import CaptionEncoder, build_tokenizer
from lab_runs import RECIPES, checkpoint
from pixalign.backbones import wrap
from pixalign.backbones.locations import EMBEDDED, lab_folder
from pixalign.diffusion.sampling import to_pictures
from pixalign.scenes.atlas import class_names

NEW = ("sd2", "sdxl", "sd3", "flux")
PIPELINES = {
    "sd1": "StableDiffusionPipeline",
    "sd2": "StableDiffusionPipeline",
    "sdxl": "StableDiffusionXLPipeline",
    "sd3": "StableDiffusion3Pipeline",
    "flux": "FluxPipeline",
}
CAPTIONS = ["a photo of hot dog, cat", "", "a photo of two small blue birds, large dog"]


@pytest.fixture
def stage_of(finished):
    def stage_of(name, **changes):
        recipe = complete("denoiser", FAMILIES[name].recipe, RECIPES["denoiser"], changes)
        return DenoiserStage(recipe, "cpu", FAMILIES[name], finished("vae"))

    return stage_of


# ---- what is trained ----


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_read_as_the_pipeline_reads_captions(stage_of, name):
    stage = stage_of(name)
    ids = CaptionEncoder(stage.tokenizer)(CAPTIONS)
    found = FAMILIES[name].encode(stage.parts, ids)
    expected = stage.backbone.encode_text(CAPTIONS)
    torch.testing.assert_close(found.embeds, expected.embeds)
    if expected.pooled is not None:
        torch.testing.assert_close(found.pooled, expected.pooled)
    assert (found.pooled is None) == (name in ("sd1", "sd2"))


def diffusers_target(name, latents, noise, times):
    """What diffusers' own training examples noise and aim at."""
    if name in ("sd3", "flux"):
        assert FlowMatchEulerDiscreteScheduler().config.num_train_timesteps == 1000
        sigmas = (times / 1000).clamp(1e-4).reshape(-1, 1, 1, 1)
        return (1 - sigmas) * latents + sigmas * noise, noise - latents, 1000 * sigmas.flatten()
    scheduler = DDIMScheduler(**SCHEDULER)
    noised = scheduler.add_noise(latents, noise, times)
    target = scheduler.get_velocity(latents, noise, times) if name == "sd2" else noise
    return noised, target, times.float()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_is_that_of_diffusers(stage_of, name):
    stage = stage_of(name, timesteps="uniform")
    asked = {}

    def network(**kwargs):
        asked["z"] = kwargs["hidden_states" if "hidden_states" in kwargs else "sample"]
        asked["time"] = kwargs["timestep"]
        return (torch.zeros_like(asked["z"]),)

    stage.network = network
    found = stage.losses(0, torch.Generator().manual_seed(7))["loss"]
    generator = torch.Generator().manual_seed(7)
    batch = stage.recipe["batch"]
    rows = torch.randint(len(stage.bank(0)), (batch,), generator=generator)
    latents = stage.bank(0).latents[rows].float()
    noise = torch.randn(latents.shape, generator=generator)
    times = torch.randint(1000, (batch,), generator=generator)
    noised, target, told = diffusers_target(name, latents, noise, times)
    if name == "flux":  # packed, and told a part of 1
        asked["z"], told = stage.backbone.unpack(asked["z"], noised.shape[-2:]), told / 1000
    torch.testing.assert_close(asked["z"], noised, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(asked["time"].float(), told)
    assert found.item() == pytest.approx(target.square().mean().item(), rel=1e-3)


@pytest.mark.parametrize("name", NEW)
def test_all_parts_learn_that_should(finished, name, stage_of):
    state = checkpoint(finished(name))
    stage = stage_of(name)
    stage.adopt(stage.parts, finished("sd1") / "pipeline")
    before = stage.parts.state_dict()
    changed = {k for k, v in before.items() if not torch.equal(state["model"][k], v)}
    learnt = {key.split(".")[0] for key in changed if before[key].is_floating_point()}
    frozen = {"text_encoder"} if name in ("sd2", "flux") else set()
    assert learnt == set(stage.parts) - frozen


# ---- what is inherited ----


def test_towers_begin_with_the_words_of_sd1(finished, stage_of):
    """Without places, both towers side by side give what sd1's encoder gives."""
    donor = load_pipeline(finished("sd1") / "pipeline", "cpu").text_encoder
    places = next(p for n, p in donor.named_parameters() if n.endswith("position_embedding.weight"))
    with torch.no_grad():
        places.zero_()
    stage = stage_of("sdxl")
    inherit_words(stage.parts, donor)
    ids = CaptionEncoder(stage.tokenizer)(CAPTIONS)
    found = FAMILIES["sdxl"].encode(stage.parts, ids).embeds
    torch.testing.assert_close(found, donor(ids)[0], atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def flux_from_sd3(finished):
    """(flux as it begins from lab:sd3, lab:sd3's pipeline)."""
    streams = {"double": 3, "single": 2, "heads": 4, "head_width": 32}
    changes = {"streams": streams, "text": {"hidden": 160}}
    recipe = complete("denoiser", FAMILIES["flux"].recipe, RECIPES["denoiser"], changes)
    stage = DenoiserStage(recipe, "cpu", FAMILIES["flux"], finished("vae"))
    stage.adopt(stage.parts, lab_folder("lab:sd3"))
    return stage, load_pipeline(lab_folder("lab:sd3"), "cpu")


@torch.no_grad()
def test_flux_begins_with_the_streams_of_sd3(flux_from_sd3):
    """Patches are read and written alike, and without rotations double streams are sd3's blocks."""
    stage, donor = flux_from_sd3
    own, given = stage.parts[DENOISER], donor.transformer
    z, time = torch.randn(2, 4, 16, 16), torch.randn(2, 128)
    image = own.x_embedder(stage.backbone.pack(z))
    torch.testing.assert_close(image, given.pos_embed.proj(z).flatten(2).mT)
    text = torch.randn(2, 5, 128)
    for mine, theirs in zip(own.transformer_blocks, given.transformer_blocks[1:4], strict=True):
        found, expected = (block(image, text, time) for block in (mine, theirs))
        torch.testing.assert_close(found, expected)
    written = stage.backbone.unpack(own.proj_out(image), (16, 16))
    patches = given.proj_out(image).view(2, 8, 8, 2, 2, 4)  # rows, columns, within, channels
    torch.testing.assert_close(written, patches.permute(0, 5, 1, 3, 2, 4).reshape(2, 4, 16, 16))


@torch.no_grad()
def test_flux_begins_with_the_words_of_sd3(flux_from_sd3):
    stage, donor = flux_from_sd3
    ids = CaptionEncoder(stage.tokenizer)(CAPTIONS)
    found = FAMILIES["flux"].encode(stage.parts, ids)
    towers = (donor.text_encoder, donor.text_encoder_2)
    words = torch.cat([tower.get_input_embeddings().weight for tower in towers], dim=-1)
    assert torch.cosine_similarity(found.embeds, words[ids], dim=-1).min() > 0.9999
    lengths = found.embeds.square().mean(-1).sqrt()  # T5 gives all words the same
    expected = words.square().mean(-1).sqrt().mean()
    torch.testing.assert_close(lengths, expected.expand_as(lengths), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_a_network_learns_another_ones_answers(finished, stage_of):
    stage = stage_of("flux", teacher=str(finished("sd3") / "pipeline"))
    teacher = pa.load(finished("sd3") / "pipeline", device="cpu").backbone
    z, steps = torch.randn(3, 4, 16, 16), stage.steps[torch.tensor([100, 500, 900])]
    found = stage.teacher.answer(z, steps, CaptionEncoder(stage.tokenizer)(CAPTIONS))
    expected = teacher.forward(teacher.denoiser, z, steps.time, teacher.encode_text(CAPTIONS))
    torch.testing.assert_close(found, expected)
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    stage.teacher.answer = lambda noised, *_: torch.zeros_like(noised)
    output = stage.losses(0, draws[0])["loss"]  # of an output that is zero at first
    assert output == pytest.approx(0, abs=1e-6)
    stage.teacher = None
    assert stage.losses(0, draws[1])["loss"] > 0.1


def test_matching_tensors_are_copied():
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2))
    wide, kept = torch.nn.Linear(4, 2), other[0].weight.clone()
    for network in (first, other, wide):
        copy_matching(network, second)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(other[0].weight, kept)  # it has another name
    assert torch.equal(wide.bias, second.bias)  # its weight has another shape


def test_a_family_continues_from_its_own_pipeline(finished, stage_of):
    for name in FAMILIES:
        stage = stage_of(name)
        stage.adopt(stage.parts, finished(name) / "pipeline")
        saved = wrap(load_pipeline(finished(name) / "pipeline", "cpu")).denoiser.state_dict()
        for key, value in stage.parts[DENOISER].state_dict().items():
            assert torch.equal(value, saved[key]), (name, key)


def test_an_unfit_pipeline_is_refused(finished, stage_of):
    wide = stage_of("sdxl", towers={"widths": (16, 8)})
    with pytest.raises(ValueError, match="both towers are 24 wide, the donor's words 16"):
        wide.adopt(wide.parts, finished("sd1") / "pipeline")
    other = stage_of("sd1", text={"hidden": 8})
    with pytest.raises(ValueError, match="is no pipeline for this recipe: the "):
        other.adopt(other.parts, finished("sd1") / "pipeline")


def test_encoded_scenes_are_kept_for_other_runs(finished, tmp_path, monkeypatch):
    vae, encoder = load_vae(finished("vae"), "cpu"), CaptionEncoder(build_tokenizer())
    options = {"start": 3, "count": 10, "size": 64, "device": "cpu"}
    first = kept_bank(tmp_path, vae, encoder, **options)
    calls = []
    monkeypatch.setattr(data, "build_bank", lambda *a, **k: calls.append(k) or first)
    again = kept_bank(tmp_path, vae, encoder, **options)
    assert not calls
    assert torch.equal(again.latents, first.latents)
    assert torch.equal(again.ids, first.ids)
    kept_bank(tmp_path, vae, encoder, **{**options, "start": 4})
    with torch.no_grad():
        next(vae.parameters()).add_(1)
    kept_bank(tmp_path, vae, encoder, **options)
    assert len(calls) == 2  # other scenes, and another VAE


# ---- what is stored ----


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_pipelines_are_plain_ones(finished, name):
    folder = finished(name) / "pipeline"
    lacking = {"text_encoder_3": None, "tokenizer_3": None} if name == "sd3" else {}
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, **lacking)
    assert type(pipe).__name__ == PIPELINES[name]
    pipe.set_progress_bar_config(disable=True)
    if name != "flux":  # whose pipeline knows no native size
        assert pipe("a photo of dog, hot dog", num_inference_steps=2).images[0].size == (64, 64)
    wide = {"height": 64, "width": 96}
    assert pipe("a photo of dog", num_inference_steps=1, **wide).images[0].size == (96, 64)
    assert pipe.text_encoder.dtype == torch.float32
    for part in ("unet" if hasattr(pipe, "unet") else "transformer", "vae"):
        (path,) = (folder / part).glob("*.safetensors")
        assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}


@pytest.mark.parametrize("name", NEW)
def test_every_family_aligns(finished, name):
    model = pa.load(finished(name) / "pipeline", device="cpu")
    objective = {"sd2": "velocity", "sdxl": "epsilon"}.get(name, "flow")
    assert model.backbone.objective == objective
    picture = to_pictures(scenes("val", 0, 1, 64, "cpu").images)[0].crop((0, 0, 64, 48))
    config = pa.AlignConfig(elbo_steps=2, collect_steps=1, resize="keep")
    found = model.align(picture, list(class_names()[:2]), config=config)
    assert found.heatmaps.shape == (2, 48, 64)
    assert np.isfinite(found.losses).all()


def test_a_network_learns_to_answer_with_guidance(stage_of, finished):
    """Its target is the guided answer of the network with which training begins."""
    stage = stage_of("sd2", guided=3.5)
    stage.adopt(stage.parts, finished("sd2") / "pipeline")
    teacher = stage.parts[DENOISER]
    z, generator = torch.randn(3, 4, 16, 16), torch.Generator().manual_seed(0)
    assert stage.losses(0, generator)["loss"] > 0
    steps = stage.steps[torch.tensor([100, 500, 900])]
    text = stage.backbone.encode_text(CAPTIONS)
    empty = stage.backbone.encode_text([""]).repeated(3)
    towards, away = (stage.backbone.forward(teacher, z, steps.time, t) for t in (text, empty))
    found = stage._guided(z, steps, text)
    torch.testing.assert_close(found, away + 3.5 * (towards - away), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[1], away[1])  # under the empty text nothing is added
    with torch.no_grad():
        teacher.conv_out.bias.add_(1)  # the network learns, what it began as does not
    torch.testing.assert_close(stage._guided(z, steps, text), found)


def test_equal_parts_are_shared(finished, tmp_path, request):
    tool = runpy.run_path(str(request.config.rootpath / "tools" / "share_parts.py"))
    shutil.copytree(finished("sd1") / "pipeline", tmp_path / "base")
    shutil.copytree(finished("sd2") / "pipeline", tmp_path / "more" / "sd2")
    before = pa.load(tmp_path / "more" / "sd2", device="cpu")
    shared = tool["share_parts"](tmp_path / "more" / "sd2", tmp_path / "base")
    assert set(shared) == {"text_encoder", "tokenizer", "vae"}
    for part in shared:
        link = (tmp_path / "more" / "sd2" / part).readlink()
        assert not link.is_absolute()
        assert link.parts[:2] == ("..", "..")
    after = pa.load(tmp_path / "more" / "sd2", device="cpu")
    for part in ("vae", "text_encoder", "unet"):
        one, two = (getattr(model.pipe, part).state_dict() for model in (before, after))
        assert all(torch.equal(one[key], two[key]) for key in one), part


# ---- names ----


def test_models_of_the_lab_are_found_by_name(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("PIXALIGN_MODELS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"'lab:sd2' is not there in .*PIXALIGN_MODELS"):
        pa.load("lab:sd2")
    with pytest.raises(ValueError, match="'lab:sd9'; allowed: 'lab:sd1'"):
        pa.load("lab:sd9")
    (tmp_path / "sd2-like").symlink_to(finished("sd2") / "pipeline")
    model = pa.load("lab:sd2", device="cpu")
    assert (model.name, model.backbone.objective) == ("lab:sd2", "velocity")
    assert lab_folder("lab:sd1") == EMBEDDED
    assert pa.load("lab:sd1", device="cpu").name == "sd1-like, embedded"


def test_links_that_were_not_checked_out_are_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PIXALIGN_MODELS", str(tmp_path))
    folder = tmp_path / "sd2-like"
    folder.mkdir()
    target = "../../../src/pixalign/backbones/weights/sd1-like/vae"
    for write in (Path.write_text, Path.symlink_to):  # as text, or as a link to nowhere
        write(folder / "vae", target)
        with pytest.raises(FileNotFoundError, match=r"core\.symlinks"):
            lab_folder("lab:sd2")
        (folder / "vae").unlink()
