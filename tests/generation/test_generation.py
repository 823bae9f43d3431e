"""The paper's compositional generation, against loops that take every pass on its own."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers import assert_same, fingerprint, model_of, small
from pixalign.backbones import wrap
from pixalign.core.batching import BatchSize
from pixalign.diffusion.objectives import OBJECTIVES
from pixalign.diffusion.sampling import initial_noise, to_pictures
from pixalign.generation.methods import Elbo, entity_weights
from pixalign.generation.methods import GenerationMethod as Plain
from pixalign.generation.plan import GenerationPlan, GenerationRequest, GenerationSettings
from pixalign.generation.result import plot_weights
from pixalign.text.entities import given_entities
from pixalign.text.weighting import weighted

PROMPT, NAMED = "a red car and a dog with a hot dog", ["red car", "dog", "hot dog"]
STEPS = 3
UNETS = ("sd1", "sd2-v", "sdxl")


@pytest.fixture(params=[*UNETS, "sd3", "sd3-t5"])
def backbone(request, wide):
    """In float64, where batches of any make-up agree."""
    return wrap(wide(request.param))


def plan_of(backbone, prompts=((PROMPT, NAMED),), first_seed=7, batch_size=64, **settings):
    requests = [
        GenerationRequest(prompt, first_seed + number, given_entities(prompt, entities))
        for number, (prompt, entities) in enumerate(prompts)
    ]
    settings, model = GenerationSettings(STEPS, 5.0, **settings), model_of(backbone)
    model.batch_size = BatchSize(batch_size)
    plan = GenerationPlan(model, requests, settings, (32, 32))
    plan.noise = plan.noise.double()
    return plan


def run(kind, plan):
    method = kind(plan)

    def output(index, z):
        return method.output(index, z).double()

    return method, plan.sampler.run(plan.noise, output, before=method.before)


@torch.no_grad()
def reference(backbone, prompt, entities, noise, strength=1.2, guidance=5.0, released=False):
    """METHODS in words: one pass at a time, one picture at a time."""
    path, z = backbone.schedule.path(STEPS), noise[None].clone()
    whole, empty = backbone.encode_text([prompt]), backbone.unconditional()
    blank = backbone.encode_text([""])
    empty = blank if released else empty
    alone = [backbone.encode_text([entity.text]) for entity in entities]
    plan = plan_of(backbone, ((prompt, [entity.text for entity in entities]),))
    all_weights = []

    def said(text):
        return backbone.predict(z, path.at(index, 1), text).double()

    def noise_of(text):
        return OBJECTIVES[backbone.objective].to_epsilon(said(text), z, path.at(index, 1))

    for index in range(STEPS):
        total = noise_of(whole)
        errors = [float((noise_of(text) - total).square().mean()) for text in alone]
        low, high = min(errors), max(errors)
        weights = [round(strength ** ((e - low) / (high - low)), 2) for e in errors]
        embeds = whole.embeds.clone()
        for columns, weight in zip(plan.columns[0], weights, strict=True):
            for column in columns.words:
                plain = blank.embeds[0, column]
                embeds[0, column] = plain + weight * (whole.embeds[0, column] - plain)
        pooled = whole.pooled
        if released and pooled is not None:
            pieces, at = [], 0
            for entity, weight in zip(entities, weights, strict=True):
                start, end = entity.span
                pieces += [prompt[at:start], f"({prompt[start:end]}){weight:g}"]
                at = end
            pooled = backbone.encode_text(["".join(pieces) + prompt[at:]]).pooled
        full, nothing = said(type(whole)(embeds, pooled)), said(empty)
        output = nothing + guidance * (full - nothing)
        z = path.advance(backbone.objective, output, z, index)
        all_weights.append(weights)
    return z[0], np.array(all_weights)


def test_the_papers_step_by_step(backbone):
    plan = plan_of(backbone)
    found, z = run(Elbo, plan)
    expected, weights = reference(backbone, PROMPT, plan.requests[0].entities, plan.noise[0])
    np.testing.assert_allclose(found.weights[0].numpy(), weights, atol=1e-6)
    torch.testing.assert_close(z[0], expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(run(Plain, plan)[1][0], expected, atol=1e-3)
    assert np.isfinite(found.errors[0].numpy()).all()


def test_the_releases_step_by_step(wide):
    """On SDXL the authors' code encodes the empty prompt and pools the annotated one."""
    backbone = wrap(wide("sdxl"))
    assert backbone.pipe.config.force_zeros_for_empty_prompt
    found, z = run(Elbo, plan_of(backbone, released=True))
    about = (backbone, PROMPT, found.plan.requests[0].entities, found.plan.noise[0])
    expected, weights = reference(*about, released=True)
    np.testing.assert_allclose(found.weights[0].numpy(), weights, atol=1e-6)
    torch.testing.assert_close(z[0], expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(z[0], reference(*about)[0], atol=1e-3)


@pytest.mark.parametrize("method", ["plain", "elbo"])
def test_prompts_that_no_encoder_reads_are_refused(wide, method):
    model = model_of(small("sd1"))
    with pytest.raises(ValueError, match=r"has \d+ tokens, of which the model reads 77; shorten"):
        model.generate("a dog and " * 40, method=method, entities=["dog"], steps=2)
    for prompt in ("", " \n"):
        with pytest.raises(ValueError, match="needs at least one word"):
            model.generate(prompt, method="plain", steps=2)
    with pytest.raises(ValueError, match="allowed: a whole number from 0"):
        model.generate("a dog", method="plain", seed=2**64, steps=2)
    with pytest.raises(ValueError, match="guidance is nan; allowed: a finite number"):
        model.generate("a dog", method="plain", guidance=float("nan"), steps=2)


def test_latents_are_taken_and_given_back():
    model = model_of(small("sd1"))
    options = {"entities": NAMED, "steps": 2, "size": (32, 32)}
    noise = initial_noise(model.backbone, [5, 6], (32, 32))
    usual = model.generate(PROMPT, seed=5, count=2, **options)
    again = model.generate(PROMPT, seed=0, count=2, latents=noise.numpy(), **options)
    for one, other in zip(usual, again, strict=True):
        np.testing.assert_allclose(one.latents, other.latents, atol=1e-5)
        decoded = model.backbone.decode_latents(torch.from_numpy(one.latents)[None])
        pixels = [np.asarray(picture, int) for picture in (to_pictures(decoded)[0], one.image)]
        assert np.abs(pixels[0] - pixels[1]).max() <= 1  # decoded alone, and together
    alone = model.generate(PROMPT, latents=noise[1], **options)
    np.testing.assert_allclose(alone.latents, usual[1].latents, atol=1e-4)
    for wrong in (noise[:1], noise[0, 0], noise * float("nan")):
        with pytest.raises(ValueError, match=r"latents are .* allowed: finite numbers"):
            model.generate(PROMPT, count=2, latents=wrong, **options)


def test_a_long_prompt_is_refused_only_if_no_encoder_reads_it():
    model = model_of(small("sd3-t5"))  # T5 reads more than CLIP
    model.backbone.check_prompt("a dog and " * 40)


def test_pictures_do_not_depend_on_their_company(wide):
    backbone = wrap(wide("sd1"))
    prompts = (
        (PROMPT, NAMED),
        ("a dog", ["dog"]),
        ("a tree and a car", ["tree", "car"]),
        ("a photo", []),
    )
    method, together = run(Elbo, plan_of(backbone, prompts))
    for picture, prompt in enumerate(prompts):
        alone, z = run(Elbo, plan_of(backbone, [prompt], 7 + picture, batch_size=1))
        torch.testing.assert_close(together[picture], z[0])
        torch.testing.assert_close(method.weights[picture], alone.weights[0])
    assert (method.weights[1] == 1).all()
    assert method.weights[3].shape == (STEPS, 0)
    plain = run(Plain, method.plan)[1]  # which one entity or none comes to
    torch.testing.assert_close(together[[1, 3]], plain[[1, 3]])


def test_outside_its_part_of_the_steps_the_method_does_nothing(wide):
    plan = plan_of(wrap(wide("sd1")), active=(0.3, 0.6))
    method, _ = run(Elbo, plan)
    acted = np.isfinite(method.errors[0].numpy()).all(1)
    assert acted.tolist() == [False, True, False]
    assert (method.weights[0][~torch.from_numpy(acted)] == 1).all()


def test_passes_of_a_step(monkeypatch, wide):
    """(3 + N) rows: the empty prompt, the whole one, N entities in one batch; then the weighted."""
    backbone = wrap(wide("sd1"))
    rows, predict = [], type(backbone).predict

    def counted(self, z, *rest):
        rows.append(len(z))
        return predict(self, z, *rest)

    monkeypatch.setattr(type(backbone), "predict", counted)
    run(Elbo, plan_of(backbone))
    assert rows == [2 + 3, 1] * STEPS


@given(
    errors=st.lists(st.floats(1e-6, 10), min_size=1, max_size=6),
    strength=st.floats(1.0, 3.0),
)
def test_weights_are_hundredths_between_one_and_the_strength(errors, strength):
    weights = entity_weights(torch.tensor(errors, dtype=torch.float64), strength).double()
    assert (weights >= 1).all()
    assert (weights <= round(strength, 2) + 1e-6).all()
    torch.testing.assert_close(weights * 100, (weights * 100).round(), rtol=0, atol=1e-4)
    if len(set(errors)) == 1:
        assert (weights == 1).all()
    elif max(errors) > 1.01 * min(errors):
        assert weights[np.argmax(errors)] == pytest.approx(strength, abs=0.0051)
        assert weights[np.argmin(errors)] == 1


@pytest.mark.parametrize("name", ["sd1", "sdxl"])
def test_weighted_prompts_are_compels(name, pipeline):
    compel = pytest.importorskip("compel")
    pipe = pipeline(name)
    backbone = wrap(pipe)
    parts = {"tokenizer": pipe.tokenizer, "text_encoder": pipe.text_encoder}
    if name == "sdxl":
        kind = compel.ReturnedEmbeddingsType.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED
        parts = {part: [one, getattr(pipe, f"{part}_2")] for part, one in parts.items()}
        parts |= {"returned_embeddings_type": kind, "requires_pooled": [False, True]}
    weighting = compel.Compel(**parts)
    with torch.no_grad():
        found = weighting("a (red car)1.15 and a (dog)1.2 with a tree")
    expected = found[0] if name == "sd1" else found[0][0]
    plan = plan_of(backbone, (("a red car and a dog with a tree", ["red car", "dog"]),))
    blank, weights = backbone.encode_text([""]).embeds[0], torch.ones(1, 77)
    for columns, weight in zip(plan.columns[0], (1.15, 1.2), strict=True):
        weights[0, list(columns.words)] = weight
    embeds = weighted(plan.texts.embeds, blank, weights)[0]
    torch.testing.assert_close(embeds, expected.reshape(embeds.shape), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plan.texts.embeds[0], embeds, atol=1e-2)


def test_repeated_phrases_have_their_own_columns(sd1):
    plan = plan_of(wrap(sd1), (("a dog and a red dog", ["dog", "red dog"]),))
    first, second = plan.columns[0]
    assert first.words == (2,)
    assert second.words == (5, 6)
    assert (second.head, second.modifiers) == ((6,), ((5,),))


# ---- the function ----


@pytest.fixture
def model(sd1):
    return model_of(sd1)


def test_results(model):
    before = fingerprint(model.backbone.denoiser)
    options = {"entities": NAMED, "steps": 2, "guidance": 3.0, "size": (32, 64)}
    made = model.generate(PROMPT, count=2, seed=4, **options)
    assert [picture.seed for picture in made] == [4, 5]
    assert made[0].image.size == (64, 32)
    assert made[0].weights.shape == made[0].errors.shape == (2, 3)
    assert [entity.text for entity in made[0].entities] == ["red car", "dog", "hot dog"]
    again, repeat = (model.generate(PROMPT, seed=5, **options) for _ in range(2))
    np.testing.assert_allclose(np.asarray(again.image), np.asarray(made[1].image), atol=1)
    assert np.array_equal(np.asarray(again.image), np.asarray(repeat.image))
    assert_same(before, fingerprint(model.backbone.denoiser))


def test_entities_are_found_by_spacy_but_for_plain_sampling(model, monkeypatch):
    few = {"steps": 1, "size": (32, 32)}
    made = model.generate("a dog and a red car", **few)
    assert [entity.text for entity in made.entities] == ["dog", "red car"]
    monkeypatch.setattr("pixalign.generation.run.entities_of", None)
    assert model.generate("a dog", method="plain", **few).entities == ()


def test_many_prompts_say_once_what_is_plain(model):
    prompts = ["a dog and a car", "a tree", "a cat"]
    named = [["dog", "car"], ["tree"], []]
    with pytest.warns(UserWarning, match="'elbo' needs two entities; 'a tree' is") as said:
        made = model.generate(prompts, entities=named, steps=1, count=2, size=(32, 32))
    assert len(said) == 1
    assert "and so are 1 more" in str(said[0].message)
    expected = [(prompt, seed) for prompt in prompts for seed in (0, 1)]
    assert [(picture.prompt, picture.seed) for picture in made] == expected
    assert len(model.generate(["a dog"], method="plain", steps=1, size=(32, 32))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "method is 'magic'; allowed: 'elbo', 'plain'"),
        ({"count": 0}, "count is 0"),
        ({"entities": "dog"}, "entities is 'dog'; give a list"),
        ({"entities": ["wolf"]}, "entity 'wolf' does not occur"),
        ({"entities": [["dog"], ["car"]]}, "2 lists of entities for 1 prompts"),
        ({"entities": NAMED, "strength": 0.5}, "strength is 0.5"),
        ({"entities": NAMED, "active": (0.5, 0.5)}, "active is"),
        ({"entities": NAMED, "size": (3, 3)}, "size is 3x3; allowed: multiples"),
        ({"entities": NAMED, "steps": 0}, "steps is 0"),
    ],
)
def test_bad_input(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.generate(PROMPT, **{"steps": 1, **options})


# ---- files and the command ----


def test_files(model, tmp_path):
    small = {"steps": 2, "size": (32, 32)}
    made = model.generate(PROMPT, entities=NAMED, active=(0.0, 0.5), **small)
    path = made.save(tmp_path)
    assert Image.open(path).size == made.image.size
    record = json.loads(path.with_suffix(".json").read_text())
    assert record["entities"] == ["red car", "dog", "hot dog"]
    assert record["errors"][1] == [None, None, None]
    assert record["weights"][1] == [1.0, 1.0, 1.0]
    assert record["model"]["family"] == "sd"
    picture = Image.open(plot_weights(made, tmp_path / "weights.png"))
    assert picture.width > 300
    with pytest.raises(ValueError, match="no entities"):
        plot_weights(model.generate("a dog", method="plain", **small), tmp_path / "x.png")


def test_the_command_draws_and_compares(shell, sd1_folder, tmp_path):
    code, out, _ = shell(
        "generate", PROMPT, "--model", sd1_folder, "--entity", "red car", "--entity", "dog",
        "--steps", 2, "--count", 2, "--compare", "--plot", "--out", tmp_path, "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert "mean weights: red car" in out
    names = {path.name for path in tmp_path.iterdir()}
    assert "compare.png" in names
    assert len([name for name in names if name.endswith("-weights.png")]) == 2
    assert len([name for name in names if name.endswith(".json")]) == 2


def test_the_command_prints_json(shell, sd1_folder, tmp_path):
    few = ("--model", sd1_folder, "--steps", 1, "--out", tmp_path)
    code, out, err = shell("generate", "a dog", *few, "--json")
    assert code == 0
    assert json.loads(out)[0]["method"] == "elbo"
    assert "sampled plainly" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a dog", "--method", "magic"), "'magic' is not one of 'elbo', 'plain'"),
        (("a dog and a cat", "--entity", "wolf"), "entity 'wolf' does not occur"),
        (("a dog", "--model", "nowhere"), "neither a folder nor a hub id"),
        (("a dog", "--non-entities", "missing.txt"), "missing.txt"),
    ],
)
def test_bad_commands_say_what_is_wrong(shell, tmp_path, arguments, message):
    code, out, err = shell("generate", *arguments, "--out", tmp_path / "none")
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "none").exists()
