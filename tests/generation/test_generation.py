"""The paper's compositional generation, against loops that take every pass on its own."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pixalign as pa
import tiny
from pixalign.backbones import wrap
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.diffusion.objectives import to_epsilon
from pixalign.generation.drawing import Drawing, Settings, Wish
from pixalign.generation.methods import Elbo, Plain, entity_weights
from pixalign.generation.plots import plot_weights
from pixalign.generation.run import METHODS, draw, generate
from pixalign.text.entities import given_entities
from pixalign.text.weighting import weighted

PROMPT, NAMED = "a red car and a dog with a hot dog", ["red car", "dog", "hot dog"]
STEPS = 3
UNETS = ("sd1", "sd2-v", "sdxl")


@pytest.fixture(params=[*UNETS, "sd3", "sd3-t5"])
def backbone(request, wide):
    """In float64, where batches of any make-up agree."""
    return wrap(wide(request.param))


def drawing_of(backbone, prompts=((PROMPT, NAMED),), **settings):
    wishes = [Wish(p, 7 + i, given_entities(p, e)) for i, (p, e) in enumerate(prompts)]
    made = Drawing(
        backbone, wishes, Settings(STEPS, 5.0, **settings), backbone.native_size, BatchSize(64)
    )
    made.noise = made.noise.double()
    return made


def run(kind, drawing):
    method, z = kind(drawing), drawing.noise
    for index in range(STEPS):
        output = method.output(index, method.before(index, z)).double()
        z = drawing.path.advance(drawing.backbone.objective, output, z, index)
    return method, z


@torch.no_grad()
def reference(backbone, prompt, entities, noise, strength=1.2, guidance=5.0):
    """METHODS in words: one pass at a time, one picture at a time."""
    path, z = backbone.schedule.path(STEPS), noise[None].clone()
    whole, empty = backbone.encode_text([prompt]), backbone.unconditional()
    blank = backbone.encode_text([""])
    alone = [backbone.encode_text([entity.text]) for entity in entities]
    drawing = drawing_of(backbone, ((prompt, [entity.text for entity in entities]),))
    all_weights = []
    for index in range(STEPS):
        steps = path.at(index, 1)

        def said(text, z=z, steps=steps):
            return backbone.predict(z, steps, text).double()

        def noise_of(text, z=z, steps=steps, said=said):
            return to_epsilon(backbone.objective, said(text), z, steps)

        total = noise_of(whole)
        errors = [float((noise_of(text) - total).square().mean()) for text in alone]
        low, high = min(errors), max(errors)
        weights = [round(strength ** ((e - low) / (high - low)), 2) for e in errors]
        embeds = whole.embeds.clone()
        for columns, weight in zip(drawing.columns[0], weights, strict=True):
            for column in columns.words:
                plain = blank.embeds[0, column]
                embeds[0, column] = plain + weight * (whole.embeds[0, column] - plain)
        full, nothing = said(type(whole)(embeds, whole.pooled)), said(empty)
        output = nothing + guidance * (full - nothing)
        z = path.advance(backbone.objective, output, z, index)
        all_weights.append(weights)
    return z[0], np.array(all_weights)


def test_the_papers_step_by_step(backbone):
    drawing = drawing_of(backbone)
    found, z = run(Elbo, drawing)
    expected, weights = reference(backbone, PROMPT, drawing.wishes[0].entities, drawing.noise[0])
    np.testing.assert_allclose(found.weights[0].numpy(), weights, atol=1e-6)
    torch.testing.assert_close(z[0], expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(run(Plain, drawing)[1][0], expected, atol=1e-3)
    assert np.isfinite(found.errors[0].numpy()).all()


def test_pictures_do_not_depend_on_their_company(wide):
    backbone = wrap(wide("sd1"))
    prompts = (
        (PROMPT, NAMED),
        ("a dog", ["dog"]),
        ("a tree and a car", ["tree", "car"]),
        ("a photo", []),
    )
    together = drawing_of(backbone, prompts)
    method, all_ = run(Elbo, together)
    for picture, wish in enumerate(together.wishes):
        settings = together.settings
        alone = Drawing(backbone, [wish], settings, backbone.native_size, BatchSize(1))
        alone.noise = alone.noise.double()
        own, z = run(Elbo, alone)
        torch.testing.assert_close(all_[picture], z[0])
        torch.testing.assert_close(method.weights[picture], own.weights[0])
    assert (method.weights[1] == 1).all()
    assert method.weights[3].shape == (STEPS, 0)


def test_one_entity_or_none_is_plain_sampling(wide):
    backbone = wrap(wide("sd1"))
    drawing = drawing_of(backbone, (("a dog", ["dog"]), ("a photo", [])))
    torch.testing.assert_close(run(Elbo, drawing)[1], run(Plain, drawing)[1])


def test_outside_its_part_of_the_steps_the_method_does_nothing(wide):
    drawing = drawing_of(wrap(wide("sd1")), active=(0.3, 0.6))
    method, _ = run(Elbo, drawing)
    acted = np.isfinite(method.errors[0].numpy()).all(1)
    assert acted.tolist() == [False, True, False]
    assert (method.weights[0][~torch.from_numpy(acted)] == 1).all()


def test_passes_of_a_step(monkeypatch, wide):
    """(3 + N) rows: the empty prompt, the whole one, N entities in one batch; then the weighted."""
    backbone = wrap(wide("sd1"))
    rows = []
    predict = type(backbone).predict

    def counted(self, z, *rest, **more):
        rows.append(len(z))
        return predict(self, z, *rest, **more)

    monkeypatch.setattr(type(backbone), "predict", counted)
    run(Elbo, drawing_of(backbone))
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
    if name == "sd1":
        weighting = compel.Compel(tokenizer=pipe.tokenizer, text_encoder=pipe.text_encoder)
    else:
        weighting = compel.Compel(
            tokenizer=[pipe.tokenizer, pipe.tokenizer_2],
            text_encoder=[pipe.text_encoder, pipe.text_encoder_2],
            returned_embeddings_type=(
                compel.ReturnedEmbeddingsType.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED
            ),
            requires_pooled=[False, True],
        )
    with torch.no_grad():
        found = weighting("a (red car)1.15 and a (dog)1.2 with a tree")
    expected = found[0] if name == "sd1" else found[0][0]
    drawing = drawing_of(backbone, (("a red car and a dog with a tree", ["red car", "dog"]),))
    blank, weights = backbone.encode_text([""]).embeds[0], torch.ones(1, 77)
    for columns, weight in zip(drawing.columns[0], (1.15, 1.2), strict=True):
        weights[0, list(columns.words)] = weight
    embeds = weighted(drawing.texts.embeds, blank, weights)[0]
    torch.testing.assert_close(embeds, expected.reshape(embeds.shape), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(drawing.texts.embeds[0], embeds, atol=1e-2)


def test_repeated_phrases_have_their_own_columns(sd1):
    drawing = drawing_of(wrap(sd1), (("a dog and a red dog", ["dog", "red dog"]),))
    first, second = drawing.columns[0]
    assert first.words == (2,)
    assert second.words == (5, 6)
    assert (second.head, second.modifiers) == ((6,), ((5,),))


# ---- the function ----


def test_results(sd1):
    made = generate(
        PROMPT, model=sd1, entities=NAMED, steps=2, count=2, seed=4, guidance=3.0, size=(64, 96)
    )
    assert [one.seed for one in made] == [4, 5]
    assert made[0].image.size == (96, 64)
    assert made[0].weights.shape == made[0].errors.shape == (2, 3)
    assert [entity.text for entity in made[0].entities] == ["red car", "dog", "hot dog"]
    again = generate(
        PROMPT, model=sd1, entities=NAMED, steps=2, seed=5, guidance=3.0, size=(64, 96)
    )
    np.testing.assert_allclose(np.asarray(again[0].image), np.asarray(made[1].image), atol=1)
    repeat = generate(
        PROMPT, model=sd1, entities=NAMED, steps=2, seed=5, guidance=3.0, size=(64, 96)
    )
    assert np.array_equal(np.asarray(again[0].image), np.asarray(repeat[0].image))


def test_entities_are_found_by_spacy(sd1):
    made = generate("a dog and a red car", model=sd1, steps=1)
    assert [entity.text for entity in made[0].entities] == ["dog", "red car"]


def test_plain_sampling_needs_no_spacy(sd1, monkeypatch):
    monkeypatch.setattr("pixalign.generation.run.entities_of", None)
    assert generate("a dog", model=sd1, method="plain", steps=1)[0].entities == ()


def test_many_prompts_say_once_what_is_plain(sd1):
    prompts = ["a dog and a car", "a tree", "a cat"]
    named = [["dog", "car"], ["tree"], []]
    with pytest.warns(UserWarning, match="'elbo' needs two entities; 'a tree' is") as said:
        made = generate(prompts, model=sd1, entities=named, steps=1)
    assert len(said) == 1
    assert "and so are 1 more" in str(said[0].message)
    assert [one.prompt for one in made] == prompts


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
def test_bad_input(sd1, options, message):
    with pytest.raises(ValueError, match=message):
        generate(PROMPT, model=sd1, **{"steps": 1, **options})


def test_entities_beyond_the_models_reach(sd1):
    text = "a photo of " + "dog " * 90 + "and a tree"
    with pytest.raises(ValueError, match="'tree' is beyond what the model reads"):
        drawing_of(wrap(sd1), ((text, ["tree", "photo"]),))


def test_the_model_is_left_as_it_was(sd1):
    weights = {name: value.clone() for name, value in sd1.unet.state_dict().items()}
    drawing = drawing_of(wrap(tiny.BUILDERS["sd1"]()))
    drawing.noise = drawing.noise.float()
    made = draw(drawing, METHODS["elbo"], Progress(0, "", show=False))
    assert isinstance(made[0].image, Image.Image)
    hooks = [m for m in sd1.unet.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks
    assert all(torch.equal(weights[name], value) for name, value in sd1.unet.state_dict().items())


# ---- files and the command ----


def test_files(sd1, tmp_path):
    made = generate(PROMPT, model=sd1, entities=NAMED, steps=2, active=(0.0, 0.5))[0]
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
        plot_weights(generate("a dog", model=sd1, method="plain", steps=1)[0], tmp_path / "x.png")


@pytest.fixture
def command(shell):
    """Run `pixalign generate`: (exit code, stdout, stderr)."""
    return partial(shell, "generate")


def test_the_command_draws_and_compares(command, sd1_folder, tmp_path):
    code, out, _ = command(
        PROMPT, "--model", sd1_folder, "--entity", "red car", "--entity", "dog", "--steps", 2,
        "--count", 2, "--compare", "--plot", "--out", tmp_path, "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert "mean weights: red car" in out
    names = {path.name for path in tmp_path.iterdir()}
    assert "compare.png" in names
    assert len([name for name in names if name.endswith("-weights.png")]) == 2
    assert len([name for name in names if name.endswith(".json")]) == 2


def test_the_command_prints_json(command, sd1_folder, tmp_path):
    code, out, err = command(
        "a dog", "--model", sd1_folder, "--steps", 1, "--json", "--out", tmp_path
    )
    assert code == 0
    assert json.loads(out)[0]["method"] == "elbo"
    assert "sampled plainly" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a dog", "--method", "magic"), "method is 'magic'"),
        (("a dog and a cat", "--entity", "wolf"), "entity 'wolf' does not occur"),
        (("a dog", "--model", "nowhere"), "neither a folder nor a hub id"),
        (("a dog", "--non-entities", "missing.txt"), "missing.txt"),
    ],
)
def test_bad_commands_say_what_is_wrong(command, tmp_path, arguments, message):
    code, out, err = command(*arguments, "--out", tmp_path / "none")
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "none").exists()


def test_generate_is_public():
    assert pa.generate is generate
