"""Edits: what is written, where it acts, and that nothing else changes."""

import dataclasses
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

import tiny
from helpers import assert_same, fingerprint, model_of
from pixalign import AlignConfig
from pixalign.backbones import wrap
from pixalign.core.batching import BatchSize
from pixalign.diffusion.sampling import Sampler, initial_noise
from pixalign.editing import EDITING_METHODS
from pixalign.editing.blending import AttentionMasks, heatmap_mask
from pixalign.editing.inversion import InversionSettings
from pixalign.editing.methods import HeatmapInjection, PromptToPrompt
from pixalign.editing.plan import EditPlan, EditRequest, EditSettings, classes_of
from pixalign.editing.run import draw_plans
from pixalign.text.pairing import columns_of, pair

QUICK = AlignConfig(elbo_steps=2, collect_steps=2)
SOURCE, TARGET = "a photo of dog, red car", "a photo of zebra, red car"
SIZES = {"sd1": (64, 64), "sd2-v": (32, 64), "sdxl": (64, 64), "sd3-t5": (64, 48)}


def settings(**changes):
    return EditSettings(**{"method": "ptp", "steps": 3, "guidance": 3.0} | changes)


def drawn(backbone, plans, how, batch_size="auto"):
    return draw_plans(model_of(backbone, batch_size=batch_size), plans, how)


def plan_of(backbone, source, target, seed=0, side=16, **extras):
    length = backbone.unconditional().embeds.shape[1]
    noise = initial_noise(backbone, [seed], (side * 4, side * 4))
    pairing = pair(backbone, source, target, length)
    return EditPlan(EditRequest(source, target), pairing, noise, **extras)


def sampled(backbone, noise, *texts, unconditional=None):
    """Plain sampling of three steps."""
    sampler = Sampler(backbone, texts, 3, 3.0, BatchSize())
    sampler.unconditional = unconditional
    return sampler.run(noise)


# ---- what is written ----


def probabilities(pairings, heads=2, cells=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(pairings), heads, cells, pairings[0].matrix.shape[0])
    return (torch.randn(shape, generator=generator).softmax(-1) for _ in range(2))


def test_prompt_to_prompt_is_its_formula(sd1):
    backbone = wrap(sd1)
    pairings = [
        pair(backbone, "a dog and a cat", "a zebra and a cat", 77, {"cat": 2.0}),
        pair(backbone, "a cat", "a red cat with two dogs", 77),
    ]
    source, target = probabilities(pairings)
    found = PromptToPrompt(pairings, torch.device("cpu"))(source, target, (3, 4))
    for row, pairing in enumerate(pairings):
        for column in range(77):
            if pairing.blend[column]:
                mapped = source[row] @ pairing.matrix[:, column]
            else:
                mapped = target[row, :, :, column]
            expected = mapped * pairing.factors[column]
            torch.testing.assert_close(found[row, :, :, column], expected)
    # "zebra" has five tokens, each of which attends where "dog" did; "red" as it would.
    for column in range(2, 7):
        torch.testing.assert_close(found[0, ..., column], source[0, ..., 2])
    assert torch.equal(found[1, ..., 2], target[1, ..., 2])


def test_heatmaps_take_the_place_of_changed_words(pipeline):
    backbone = wrap(pipeline("sd3-t5"))
    pairings = [
        pair(backbone, "a dog and a cat", "a zebra and a tree", 333, {"tree": 3.0}),
        pair(backbone, "a car", "a red car", 333),
    ]
    heat = torch.rand(2, 8, 6, generator=torch.Generator().manual_seed(1))
    source, target = probabilities(pairings)
    cpu = torch.device("cpu")
    found = HeatmapInjection(pairings, [heat, None], cpu)(source, target, (4, 3))
    base = PromptToPrompt(pairings, cpu)(source, target, (4, 3))

    assert torch.equal(found[1], base[1])
    written = set()
    for change, heatmap in zip(pairings[0].changes, heat, strict=True):
        cells = interpolate(heatmap[None, None], (4, 3), mode="area").flatten()
        cells = (cells - cells.min()) / (cells.max() - cells.min())
        assert len(change.columns) == 2  # CLIP's and T5's
        for ours, theirs in change.columns:
            column = source[0].mean(0)[:, list(ours)].mean(1)
            expected = column.min() + cells * (column.max() - column.min())
            for other in theirs:
                factor = 3.0 if change.target == "tree" else 1.0
                for head in range(2):
                    torch.testing.assert_close(found[0, head, :, other], factor * expected)
                written.add(other)
    rest = [column for column in range(333) if column not in written]
    assert torch.equal(found[0][..., rest], base[0][..., rest])


@pytest.mark.parametrize(
    ("source", "target", "entities", "classes", "owners"),
    [
        ("a dog, a cat", "a bird, a cat", [], ["dog: dog"], [0]),
        ("a big dog", "a red bird", ["tree"], ["dog: big dog", "tree: tree"], [0]),
        ("red car, hot dog", "red bus, hot cat", ["hot dog", "red car"],
         ["car: red car", "dog: hot dog"], [0, 1]),
        ("red dog, hot dog", "red cat, hot cat", ["hot dog", "red dog"],
         ["red dog: red dog", "hot dog: hot dog"], [0, 1]),
        ("a red dog and a dog", "a red cat and a dog", ["red dog", "dog"],
         ["red dog: red dog", "dog: dog"], [0]),
        ("a big red dog and a car", "a small red cat and a car", ["big red dog", "car"],
         ["dog: big red dog", "car: car"], [0, 0]),
        ("red car", "blue car", ["red car"], ["car: red car"], [0]),
        ("a hot dog, a car", "a tree, a car", ["dog", "car"], ["dog: hot dog", "car: car"], [0]),
        ("a dog and a dog", "a cat and a cat", [], ["dog: dog"], [0, 0]),
    ],
)  # fmt: skip
def test_classes_are_the_changed_words_and_the_other_entities(
    sd1, source, target, entities, classes, owners
):
    found, whose = classes_of(pair(wrap(sd1), source, target, 77), entities)
    assert [f"{phrase.name}: {phrase.phrase}" for phrase in found] == classes
    assert whose == owners


# ---- the loop ----


@pytest.mark.parametrize("name", SIZES)
def test_without_writing_and_without_a_change_pictures_are_drawn_plainly(pipeline, name):
    backbone = wrap(pipeline(name))
    near = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-3)
    pairs = [plan_of(backbone, SOURCE, SOURCE, seed) for seed in (0, 1)]
    source, target = drawn(backbone, pairs, settings(blend="attention"))
    torch.testing.assert_close(target, source, atol=1e-5, rtol=1e-4)
    near(source, sampled(backbone, torch.cat([one.noise for one in pairs]), SOURCE, SOURCE))

    one = plan_of(backbone, SOURCE, TARGET)
    nowhere = settings(cross_replace=0.0, self_replace=0.0, blend=None)
    source, target = drawn(backbone, [one], nowhere)
    near(source, sampled(backbone, one.noise, SOURCE))
    near(target, sampled(backbone, one.noise, TARGET))
    written = drawn(backbone, [one], settings(blend=None))
    near(written[0], source)  # the source goes on
    assert (written[1] - target).abs().max() > 1e-2


def test_each_part_acts_in_its_part_of_the_steps(sd1):
    how = settings(steps=10, cross_replace=0.8, self_replace=0.4)
    assert [how.within(index, how.cross_replace) for index in range(10)] == [True] * 8 + [False] * 2
    assert sum(how.within(index, 0.4) for index in range(10)) == 4
    backbone = wrap(sd1)
    one = plan_of(backbone, SOURCE, TARGET, side=8)
    base = settings(cross_replace=0.0, self_replace=0.0, blend=None)
    plain = drawn(backbone, [one], base)[1]
    for change in ({"cross_replace": 0.3}, {"self_replace": 0.3}):
        changed = drawn(backbone, [one], dataclasses.replace(base, **change))[1]
        assert (changed - plain).abs().max() > 1e-4
    none_that_coarse = dataclasses.replace(base, self_replace=1.0, self_factor=16)
    torch.testing.assert_close(drawn(backbone, [one], none_that_coarse)[1], plain)


def test_pairs_together_are_what_they_are_alone(wide):
    """In float64, where batches agree to the last bits: edits of all kinds, in any batches."""
    backbone = wrap(wide("sd1"))
    heat = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    words = (columns_of(backbone, SOURCE, "dog", 77), columns_of(backbone, TARGET, "zebra", 77))
    pairs = [
        plan_of(backbone, SOURCE, TARGET, 0, 8, blend_columns=words),
        plan_of(backbone, SOURCE, TARGET, 1, 8, heatmaps=heat, blend_columns=words),
        plan_of(backbone, SOURCE, SOURCE, 2, 8),
        plan_of(backbone, "a cat", "a red cat", 3, 8, unconditional=torch.randn(3, 77, 32)),
    ]
    how = settings(method="elbo")
    together = drawn(backbone, pairs, how)
    for batch_size in (1, 9):
        found = drawn(backbone, pairs, how, batch_size)
        for one, other in zip(found, together, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together[1][2], together[0][2])
    assert (together[1] - together[0])[[0, 1, 3]].abs().amax((1, 2, 3)).min() > 1e-3


def test_unconditional_embeddings_are_those_of_the_step(sd1):
    backbone = wrap(sd1)
    own = torch.randn(3, 77, 32, generator=torch.Generator().manual_seed(0))
    one = plan_of(backbone, SOURCE, SOURCE, side=8, unconditional=own)
    source, _ = drawn(backbone, [one], settings())
    expected = sampled(backbone, one.noise, SOURCE, unconditional=own[:, None].__getitem__)
    torch.testing.assert_close(source, expected, atol=1e-4, rtol=1e-3)


# ---- the local blend ----


def test_outside_the_mask_nothing_changes(sd1):
    backbone = wrap(sd1)
    heat = torch.zeros(1, 64, 64)
    heat[:, :24, :40] = 1
    one = plan_of(backbone, SOURCE, TARGET, heatmaps=heat, threshold=0.5)
    source, target = drawn(backbone, [one], settings(blend="heatmap", blend_start=0.0))
    inside = heatmap_mask(one, (16, 16))[0]
    assert inside.sum() == 6 * 10
    assert torch.equal(target[0][:, ~inside], source[0][:, ~inside])
    assert (target != source)[0].any(0)[inside].all()
    late = drawn(backbone, [one], settings(blend="heatmap", blend_start=1.0))[1]
    free = drawn(backbone, [one], settings(blend=None))[1]
    assert torch.equal(late, free)
    assert heatmap_mask(dataclasses.replace(one, heatmaps=None), (2, 3)).all()


def test_masks_follow_the_words_attention(sd1):
    backbone = wrap(sd1)
    plans = [plan_of(backbone, SOURCE, TARGET, blend_columns=c) for c in (((2,), (3, 4)), None)]
    masks = AttentionMasks(backbone, plans, (16, 16), 0.3)
    assert torch.equal(masks.reader.columns[:, :, 0].sum(1), torch.tensor([1.0, 0, 1, 0]))
    assert masks.reader.columns[2, [3, 4], 0].tolist() == [0.5, 0.5]
    generator, mean = torch.Generator().manual_seed(3), 0
    for _ in range(2):
        maps = {site: torch.rand(4, 1, 8, 8, generator=generator) ** 99 for site in masks.sites}
        masks.reader.cross = maps
        found, mean = masks(), mean + sum(maps.values())

    expected = []
    for row in (0, 2):
        padded = torch.nn.functional.pad(mean[row, 0], (1, 1, 1, 1), value=-math.inf)
        pooled = torch.tensor(
            [[padded[i : i + 3, j : j + 3].max() for j in range(8)] for i in range(8)]
        )
        wide = interpolate(pooled[None, None], (16, 16), mode="bilinear")[0, 0]
        expected.append(wide / wide.max() > 0.3)
    assert torch.equal(found[0, 0], expected[0] | expected[1])
    assert not found[0].all()
    assert found[1].all()


def test_blending_reads_layers_near_16_by_16(pipeline):
    for name, latent, factor in (
        ("sd1", (64, 64), 4),
        ("sd1", (32, 32), 2),
        ("sd1", (16, 8), 1),
        ("sdxl", (128, 128), 4),
        ("sd3", (64, 64), 2),
    ):
        backbone = wrap(pipeline(name))
        sites = AttentionMasks(backbone, [plan_of(backbone, SOURCE, TARGET)], latent, 0.3).sites
        assert {site.factor for site in sites} == {factor}
        assert all(site.reads_text for site in sites)


# ---- edit ----


FEW = {"steps": 3, "guidance": 3.0, "size": (64, 64)}


@pytest.fixture(scope="module")
def models(pipeline):
    return {name: model_of(pipeline(name), config=QUICK) for name in SIZES}


def apart(one, other):
    """The largest difference of two pictures, of 255."""
    return np.abs(np.asarray(one, int) - np.asarray(other, int)).max()


@pytest.mark.parametrize("name", SIZES)
def test_generated_pictures_are_edited_on_every_family(models, name):
    model, few = models[name], {**FEW, "size": SIZES[name]}
    before = fingerprint(model.backbone.denoiser)
    options = {"entities": [["red car"], []], "blend": "heatmap", **few}
    changed, kept = model.edit(None, SOURCE, [TARGET, SOURCE], seed=[1, 2], **options)

    assert [edit.changes for edit in (changed, kept)] == [(("dog", "zebra"),), ()]
    plain = model.generate(SOURCE, method="plain", seed=1, count=2, **few)
    for edit, picture in zip((changed, kept), plain, strict=True):
        assert apart(edit.reconstruction, picture.image) <= 1
        assert edit.source is edit.reconstruction
        assert edit.figures == {}
    assert changed.heatmaps.shape == (1, *SIZES[name])
    assert kept.heatmaps is None
    assert apart(changed.edited, changed.source) > 0
    assert apart(kept.edited, kept.source) <= 1
    assert list(changed.provenance["scores"]) == ["dog", "red car"]
    assert_same(before, fingerprint(model.backbone.denoiser))


def test_pictures_of_all_shapes_in_one_call(models, monkeypatch):
    """Each is what it is alone, in its own shape; those that stay are their reconstructions."""
    pictures = [tiny.photo(80, 60), tiny.photo(60, 80), tiny.photo(40, 30, seed=1)]
    options = {**FEW, "size": None, "inversion": "ddim", "method": "ptp"}
    model = models["sd1"]
    backwards, run = [], Sampler.run

    def noted(self, *given, **options):
        backwards.append(options.get("backwards", False))
        return run(self, *given, **options)

    monkeypatch.setattr(Sampler, "run", noted)
    edits = model.edit(pictures, SOURCE, [TARGET, SOURCE, SOURCE], **options)
    assert backwards == [True, False] * 2  # nothing is drawn for its own sake
    assert [edit.source.size for edit in edits] == [(80, 60), (60, 80), (40, 30)]
    for edit, picture in zip(edits, pictures, strict=True):  # at its own size, as it was given
        assert edit.source.size == edit.edited.size == edit.reconstruction.size
        assert apart(edit.source, picture) == 0
    for edit in edits[1:]:
        assert apart(edit.edited, edit.reconstruction) <= 1
    alone = model.edit(pictures[2], SOURCE, SOURCE, **options)
    assert apart(alone.edited, edits[2].edited) <= 1
    assert set(alone.figures) == {"psnr", "psnr_vae", "vae"}
    small = pictures[2].resize((160, 96), Image.Resampling.BILINEAR)
    at_its_size = model.edit(small, SOURCE, SOURCE, **options)
    assert at_its_size.figures == pytest.approx(alone.figures, abs=0.1)  # measured there
    assert apart(at_its_size.edited.resize((40, 30), Image.Resampling.LANCZOS), alone.edited) <= 1
    assert alone.figures == pytest.approx(edits[2].figures, abs=0.1)


@pytest.mark.parametrize("method", EDITING_METHODS)
def test_a_real_picture_that_stays_is_its_reconstruction(models, method):
    options = {**FEW, "inversion": "ddim", "method": method}
    found = models["sd1"].edit(tiny.photo(80, 60), SOURCE, SOURCE, **options)
    assert np.array_equal(np.asarray(found.edited), np.asarray(found.reconstruction))


@pytest.mark.parametrize("method", EDITING_METHODS)
def test_an_edit_of_a_file(wide, tmp_path, method):
    file = tmp_path / "photo.png"
    tiny.photo(128, 64).save(file)
    options = {"entities": ["red car"], "weights": {"zebra": 1.5}, "cache": tmp_path / "kept"}
    model = model_of(wide("sd1"), config=QUICK)  # native at 64 pixels
    found = model.edit(file, SOURCE, TARGET, method=method, steps=2, guidance=2.0, **options)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert found.edited.size == found.reconstruction.size == (128, 64)  # the model's are 96 by 32
    written = found.save(tmp_path / "out")
    names = ["source.png", "reconstruction.png", "edited.png", "compare.png", "edit.json"]
    if method != "ptp":
        names.insert(3, "heatmap.png")
        assert found.heatmaps.shape == (1, 64, 128)
        assert 0 <= found.heatmaps.min() <= found.heatmaps.max() <= 1
    assert [path.name for path in written] == names
    record = json.loads((tmp_path / "out" / "edit.json").read_text())
    assert record["source"] == str(file)
    assert record["weights"] == {"zebra": 1.5}
    assert record["settings"]["method"] == method
    assert record["inversion"]["method"] == "null-text"
    assert record["cache"] == str(tmp_path / "kept")
    assert record["figures"]["psnr"] == pytest.approx(found.figures["psnr"])


def test_weights_alone_are_an_edit(models):
    options = {"method": "ptp", "blend": None, **FEW}
    weights = [{"dog": 1.0}, {"dog": 4.0}]
    same, heavy = models["sd1"].edit(None, [SOURCE] * 2, SOURCE, weights=weights, **options)
    assert apart(same.edited, same.source) == 0
    assert apart(heavy.edited, heavy.source) > 0


def test_words_for_the_blend_can_be_named(models):
    def made(words):
        options = {"method": "ptp", "blend_words": words, **FEW}
        return models["sd1"].edit(None, "a dog", "a red dog", **options)

    assert apart(made(None).edited, made(("dog", "dog")).edited) > 0
    with pytest.raises(ValueError, match="'cat' is not in the prompt 'a dog'"):
        made(("cat", "dog"))


def test_a_single_class_is_warned_of(models):
    with pytest.warns(UserWarning, match="name the others as entities"):
        models["sd1"].edit(None, SOURCE, TARGET, steps=1, size=(32, 32))


def test_what_is_not_supported_says_so(models):
    with pytest.raises(ValueError, match="diffsegmenter reads a UNet"):
        models["sd3-t5"].edit(None, SOURCE, TARGET, method="diffsegmenter")
    edit = models["sd1"].edit
    for wrong, match in (
        ({"method": "magic"}, "method is 'magic'"),
        ({"inversion": "magic"}, "inversion is 'magic'"),
        ({"blend": "magic"}, "blend is 'magic'"),
        ({"cross_replace": 2}, "cross_replace is 2"),
        ({"entities": "dog"}, "give a list"),
        ({"size": (60, 64)}, "size is 60x64"),
        ({"steps": 0}, "steps is 0"),
        ({"entities": ["red car", "tree"]}, "'tree' does not occur"),
        ({"weights": {"tree": 2}}, "'tree' is not in the prompt"),
        ({"guidance": float("inf")}, "guidance is inf; allowed: a finite number"),
        ({"seed": -1}, "seed is -1; allowed: a whole number"),
        ({"weights": [None, None]}, "weights has 2 items for 1 edits"),
    ):
        with pytest.raises(ValueError, match=match):
            edit(None, SOURCE, TARGET, **{"steps": 1, "size": (32, 32)} | wrong)
    for texts in ((SOURCE, f"{TARGET}, {'a tree, ' * 40}"), (f"{SOURCE} {'of tin ' * 50}", TARGET)):
        with pytest.raises(ValueError, match="of which the model reads 77; shorten it"):
            edit(None, *texts, steps=1, size=(32, 32))
    with pytest.raises(ValueError, match="target has 3 items for 2 edits"):
        edit(None, [SOURCE] * 2, [TARGET] * 3)
    with pytest.raises(FileNotFoundError):
        edit("no such file.png", SOURCE, TARGET)
    assert edit([], [], []) == []


@pytest.mark.parametrize("name", ["sd1", "sd3-t5"])
def test_half_precision(name):
    pipe = tiny.BUILDERS[name]()
    (pipe.unet if hasattr(pipe, "unet") else pipe.transformer).to(torch.bfloat16)
    how = InversionSettings("null-text", inner_steps=2)
    options = {**FEW, "steps": 2, "entities": ["red car"], "inversion": how}
    found = model_of(pipe, config=QUICK).edit(tiny.photo(64, 64), SOURCE, TARGET, **options)
    assert math.isfinite(found.figures["psnr"])
    assert found.provenance["inversion"]["guidance"] == 3.0


# ---- the command ----


@pytest.fixture
def command(shell, monkeypatch):
    """Run `pixalign edit` with a quick alignment: (exit code, stdout, stderr)."""
    monkeypatch.setattr("pixalign.model.load", partial(model_of, config=QUICK))
    return partial(shell, "edit")


WORDS = ("--source", "a photo of a dog and a cat", "--target", "a photo of a tree and a cat")


def test_the_command_edits_a_picture(command, sd1_folder, photo, tmp_path):
    path = tmp_path / "photo.png"
    photo.save(path)
    few = ("--model", sd1_folder, "--steps", 2, "--device", "cpu", "--out", tmp_path / "out")
    code, out, _ = command(path, *WORDS, *few, "--cache-folder", tmp_path / "kept")
    assert code == 0
    assert "dog -> tree" in out
    assert "dB from the picture" in out
    assert f"its inversion is kept in {tmp_path / 'kept'}" in out
    files = {one.name for one in (tmp_path / "out").iterdir()}
    assert files == {"source.png", "reconstruction.png", "edited.png", "heatmap.png",
                     "compare.png", "edit.json"}  # fmt: skip
    record = json.loads((tmp_path / "out" / "edit.json").read_text())
    assert set(record["scores"]) == {"dog", "cat"}  # the entities were found


def test_the_command_edits_what_a_seed_draws(command, sd1_folder, tmp_path):
    few = ("--model", sd1_folder, "--steps", 2, "--device", "cpu", "--out", tmp_path)
    code, out, _ = command(*WORDS, *few, "--method", "ptp", "--weight", "tree=2", "--json")
    assert code == 0
    record = json.loads(out)
    assert (record["seed"], record["weights"], record["inversion"]) == (0, {"tree": 2.0}, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.png", *WORDS), "'missing.png' is missing"),
        ((*WORDS, "--method", "magic"), "'magic' is not one of 'elbo', 'dense'"),
        ((*WORDS, "--inversion", "exact"), "'exact' is not one of 'null-text', 'ddim'"),
        ((*WORDS, "--blend", "magic"), "'magic' is not one of 'attention', 'heatmap', 'none'"),
        ((*WORDS, "--weight", "tree"), "weight is 'tree'; allowed: WORD=FACTOR"),
        ((*WORDS, "--cross-replace", "2"), "cross_replace is 2.0"),
    ],
)
def test_bad_commands_say_what_is_wrong(command, tmp_path, arguments, message):
    code, out, err = command(*arguments, "--out", tmp_path / "none")
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "none").exists()
