"""The baselines as a user meets them, and the parts they are made of."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pixalign as pa
import tiny
from helpers import model_of
from pixalign.alignment import heatmaps
from pixalign.alignment.collect import AttributionText
from pixalign.attention import AttentionReader, cross_keys
from pixalign.attention.sites import nearest_factor
from pixalign.bench.datasets import open_dataset
from pixalign.core.values import Phrase
from pixalign.methods import METHODS
from pixalign.methods.baseline import EVENLY
from pixalign.methods.diffseg import _divergence, anchor_rows, merged
from pixalign.methods.diffsegmenter import WEIGHT, shared
from pixalign.text.prompts import compose
from pixalign.text.weighting import weighted

CLASSES = ["dog", "hot dog", "zebra"]
OPTIONS = {
    "daam": {"timesteps": (20, 200)},
    "ovam": {"timesteps": (20, 200)},
    "ovam-optimized": {"timesteps": (20, 200), "epochs": 2},
    "diffsegmenter": {},
    "diffseg": {"anchors": 6, "threshold": 0.2},
    "diffpng": {"timesteps": (20, 200)},
}
NAMES = tuple(OPTIONS)


@cache
def small(name="sd1"):
    """An aligner of a tiny pipeline at 64 pixels."""
    pipe = tiny.BUILDERS[name]()
    (pipe.unet if hasattr(pipe, "unet") else pipe.transformer).register_to_config(sample_size=16)
    return model_of(pipe, config=pa.AlignConfig(elbo_steps=3))


def method(name, aligner=None):
    return METHODS[name](aligner or small(), **OPTIONS[name])


def masks(name, picture, count=3):
    """The keyword that a supervised method needs."""
    found = np.zeros((count, picture.height, picture.width), bool)
    found[:, : picture.height // 2] = True
    return {"target_masks": found} if METHODS[name].supervised else {}


# ---- as Model.align ----


@pytest.mark.parametrize("name", NAMES)
def test_a_list_gives_what_single_calls_give(name):
    pictures = [tiny.photo(40, 56), tiny.photo(56, 40, seed=1)]
    lists = [CLASSES, ["cat", "tree"]]
    each = [masks(name, *pair) for pair in zip(pictures, (len(c) for c in lists), strict=True)]
    extra = {"target_masks": [one["target_masks"] for one in each]} if each[0] else {}
    one = method(name)
    together = one.align(pictures, lists, seed=5, **extra)

    assert len(together) == 2
    for result, picture, classes, own in zip(together, pictures, lists, each, strict=True):
        alone = one.align(small().encode(picture), classes, seed=5, **own)
        assert isinstance(result, pa.Alignment)
        assert np.array_equal(result.heatmaps, alone.heatmaps)
        assert result.heatmaps.shape == (len(classes), picture.height, picture.width)
        assert result.heatmaps.dtype == np.float32
        assert result.heatmaps.min() >= 0
        assert result.heatmaps.max() <= 1
        assert result.classes == tuple(classes)
        assert np.isnan(result.elbo).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_record_says_what_was_done(name):
    picture = tiny.photo(40, 40)
    found = method(name).align(picture, CLASSES, seed=2, **masks(name, picture)).to_dict()
    prompts = len(CLASSES) if name == "diffsegmenter" else 1
    steps = {"diffsegmenter": [100], "diffseg": [300]}.get(name, [20, 200])

    assert found["method"] == name
    assert found["supervised"] == (name == "ovam-optimized")
    assert found["timesteps"] == {"collect": steps, "elbo": []}
    assert found["forwards"] == {"collect": prompts * len(steps), "elbo": 0}
    assert found["seed"] == 2
    assert found["model"]["family"] == "sd"
    assert len(found["prompts"]) == prompts
    assert found["layers"]


@pytest.mark.parametrize("name", NAMES)
def test_only_diffseg_sees_no_noise(name):
    picture = tiny.photo(40, 40)
    one = method(name)
    seeds = [one.align(picture, CLASSES, seed=s, **masks(name, picture)).heatmaps for s in (0, 1)]
    assert np.array_equal(*seeds) == (name == "diffseg")


@pytest.mark.parametrize("name", NAMES)
def test_the_size_of_batches_changes_nothing(name):
    picture = tiny.photo(40, 40)
    found = [
        method(name, model_of(small().backbone, batch_size=size))
        .align(picture, CLASSES, **masks(name, picture))
        .heatmaps
        for size in (1, 5)
    ]
    np.testing.assert_allclose(*found, atol=2e-4)


def test_measured_scores_are_those_of_the_aligner():
    picture = tiny.photo(40, 40)
    expected = small().align(picture, CLASSES, seed=4)
    measured = method("daam").align(picture, CLASSES, seed=4, calibrate="elbo")
    given = method("daam").align(picture, CLASSES, seed=4, scores=expected.scores)

    assert np.array_equal(measured.scores, expected.scores)
    assert np.array_equal(measured.losses, expected.losses)
    assert np.array_equal(measured.heatmaps, given.heatmaps)
    assert measured.provenance["forwards"] == {"collect": 2, "elbo": 9}
    assert measured.scores.min() < 1


def test_layers_of_a_model_cost_a_baseline_no_passes():
    """Where a model's own settings weigh layers by evidence, a method that reads none asks none."""
    model = model_of(small().backbone, settings={"cross_weights": "agreement"})
    picture = tiny.photo(40, 40)
    assert model.align(picture, CLASSES, method="attention").provenance["forwards"]["elbo"]
    found = model.align(picture, CLASSES, method="daam")
    assert found.provenance["forwards"]["elbo"] == 0
    scored = model.align(picture, CLASSES, method="daam", calibrate="elbo")
    assert scored.evidence is None


def test_a_generator_is_drawn_from_in_turn():
    pictures = [tiny.photo(40, 40)] * 2
    first, second = method("daam").align(
        pictures, CLASSES, generator=torch.Generator().manual_seed(0)
    )
    alone = method("daam").align(pictures[0], CLASSES, seed=0)
    assert np.array_equal(first.heatmaps, alone.heatmaps)
    assert not np.array_equal(first.heatmaps, second.heatmaps)
    assert first.provenance["seed"] is None


@pytest.mark.parametrize("name", ["daam", "ovam", "diffseg"])
def test_many_classes_are_split_and_never_cut(name):
    many = [f"{colour}{letter}{letter}x" for colour in "abcde" for letter in "fghijk"]
    result = method(name).align(tiny.photo(40, 40), many)
    assert len(result.provenance["prompts"]) > 1
    assert all(small().backbone.fits(prompt) for prompt in result.provenance["prompts"])
    assert result.heatmaps.shape[0] == len(many)
    if name != "diffseg":
        assert (result.heatmaps.max((1, 2)) == 1).all()


def test_phrases_and_captions_reach_the_prompts():
    classes = [Phrase("dog", "a red dog"), "cat"]
    caption = "a cat with a red dog"
    expected = {
        "daam": ["a photo of cat, a red dog"],
        "diffsegmenter": ["a photo of a red dog", "a photo of cat"],
        "diffseg": ["a photo of cat, a red dog, and background"],
    }
    for name, prompts in expected.items():
        assert method(name).align(tiny.photo(40, 40), classes).provenance["prompts"] == prompts
        told = method(name).align(tiny.photo(40, 40), classes, caption=caption)
        ending = ", and background" if name == "diffseg" else ""
        assert set(told.provenance["prompts"]) == {caption + ending}


# ---- what is refused ----


@pytest.mark.parametrize("name", NAMES)
def test_joint_attention_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} reads a UNet's .* sd3 .* allowed .* sd, sdxl"):
        method(name, small("sd3"))


def test_unknown_names_and_steps_are_refused():
    assert tuple(METHODS) == ("dense", "elbo", "attention", "likelihood", *NAMES)
    with pytest.raises(ValueError, match=r"method is 'dam'; allowed: 'dense', 'elbo', 'attention'"):
        small().align(tiny.photo(40, 40), CLASSES, method="dam")
    with pytest.raises(ValueError, match="1000"):
        METHODS["daam"](small(), timesteps=(1000,))
    with pytest.raises(ValueError, match=r"anchors, iterations and threshold are 1, 3 and 0\.9"):
        METHODS["diffseg"](small(), anchors=1)
    with pytest.raises(ValueError, match="epochs and decay_every are 0 and 80"):
        METHODS["ovam-optimized"](small(), epochs=0)


@pytest.mark.parametrize("scores", [(0.5, 1), (0.5, 1, 0), (0.5, 1, 1.5), (0.5, 1, np.nan)])
def test_scores_must_fit(scores):
    with pytest.raises(ValueError, match="allowed: 3 numbers above 0, at most 1"):
        method("daam").align(tiny.photo(40, 40), CLASSES, scores=scores)


def test_scores_and_calibrate_exclude_each_other():
    with pytest.raises(ValueError, match="allowed: one of them"):
        method("daam").align(tiny.photo(40, 40), CLASSES, scores=(1, 1, 1), calibrate="elbo")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"target_masks are missing; ovam-optimized needs bool \[3, 40, 48\]"),
        (np.ones((3, 48, 40), bool), r"bool \[3, 48, 40\]; allowed: bool \[3, 40, 48\]"),
        (np.ones((3, 40, 48)), r"float64 \[3, 40, 48\]; allowed: bool"),
        (np.full((3, 40, 48), 2), r"int64 \[3, 40, 48\]; .* or integers 0, 1 and 255"),
    ],
)
def test_target_masks_are_required(given, message):
    with pytest.raises(ValueError, match=message):
        method("ovam-optimized").align(tiny.photo(48, 40), CLASSES, target_masks=given)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ovam-optimized"])
def test_only_supervised_methods_take_masks(name):
    with pytest.raises(ValueError, match=f"target_masks are given; {name} learns from none"):
        method(name).align(tiny.photo(48, 40), CLASSES, target_masks=np.ones((3, 40, 48), bool))


def test_everything_in_one_segment_is_said():
    lone = METHODS["diffseg"](small(), threshold=100.0).align(tiny.photo(40, 40), CLASSES)
    assert any("one segment; a lower threshold than 100" in note for note in lone.warnings)
    several = method("diffseg").align(tiny.photo(40, 40), CLASSES)
    assert not any("one segment" in note for note in several.warnings)


# ---- optimised tokens ----


@pytest.mark.parametrize("outer", [torch.no_grad, torch.enable_grad])
def test_optimising_leaves_the_model_alone(outer):
    pipe, picture = small().backbone.pipe, tiny.photo(40, 40)
    models = (pipe.unet, pipe.text_encoder, pipe.vae)
    before = [(p.requires_grad, p.clone()) for model in models for p in model.parameters()]
    with outer():
        method("ovam-optimized").align(picture, CLASSES, **masks("ovam-optimized", picture))
    after = [p for model in models for p in model.parameters()]

    assert all(p.grad is None for p in after)
    assert all(p.requires_grad == known for p, (known, _) in zip(after, before, strict=True))
    assert all(torch.equal(p, value) for p, (_, value) in zip(after, before, strict=True))
    assert not any(module._forward_pre_hooks for module in pipe.unet.modules())


def test_optimised_maps_come_nearer_to_the_masks():
    picture = tiny.photo(40, 40)
    mask = masks("ovam-optimized", picture, 1)["target_masks"]
    contrast = []
    for epochs in (1, 40):
        optimised = METHODS["ovam-optimized"](small(), timesteps=(20,), epochs=epochs)
        heat = optimised.align(picture, ["dog"], target_masks=mask).heatmaps[0]
        contrast.append(heat[mask[0]].mean() - heat[~mask[0]].mean())
    assert contrast[1] > contrast[0] + 0.1


def test_unknown_pixels_do_not_supervise():
    """A mask that is unknown in its lower half fits whatever the half would hold."""
    one, picture = method("ovam-optimized"), tiny.photo(64, 64)
    mask = np.zeros((1, 64, 64), np.uint8)
    mask[:, :32, :32] = 1
    half = mask.copy()
    half[:, 32:] = 255
    losses = {}
    for name, target in (("whole", mask), ("half", half)):
        seen = losses.setdefault(name, [])

        def cross_entropy(scaled, wanted, seen=seen, **options):
            seen.append((scaled.detach().clone(), wanted))
            return torch.nn.functional.cross_entropy(scaled, wanted, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pixalign.methods.ovam.cross_entropy", cross_entropy)
            one.align(picture, ["dog"], target_masks=target)
    (maps, whole), (same, known) = losses["whole"][0], losses["half"][0]
    assert torch.equal(maps, same)  # the first epoch has not learnt yet
    assert torch.equal(whole[:, :, :32], known[:, :, :32])
    assert (known[:, :, 32:] == 0).all()
    assert not torch.equal(losses["whole"][1][0], losses["half"][1][0])


def test_the_loss_is_a_mean_over_known_pixels():
    one, picture = method("ovam-optimized"), tiny.photo(64, 64)
    top = np.zeros((1, 64, 64), np.uint8)
    top[:, :16] = 1
    steps = []

    def grad(loss, tokens):
        steps.append(loss.item())
        return (torch.zeros_like(tokens),)

    for mask in (top, np.where(np.arange(64)[:, None] < 32, top, 255), np.full_like(top, 255)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.autograd.grad", grad)
            one.align(picture, ["dog"], target_masks=mask)
    whole, half, nothing = steps[::2]
    assert 0.3 < whole < 1.4  # a cross-entropy of two channels in [0, 1]
    assert 0.3 < half < 1.4
    assert half != whole
    assert nothing == 0


# ---- parts ----


def test_a_device_without_float64_is_asked_for_none(monkeypatch):
    assert heatmaps.widest(torch.device("mps")) == torch.float32
    assert heatmaps.widest(torch.device("cpu")) == torch.float64
    picture, wide = tiny.photo(40, 40), {}
    for name in ("diffpng", "diffseg"):
        wide[name] = method(name).align(picture, CLASSES).heatmaps
    for module in ("alignment.heatmaps", "methods.diffpng", "methods.diffseg"):
        monkeypatch.setattr(f"pixalign.{module}.widest", lambda device: torch.float32)
    kinds, to_image, bincount = set(), heatmaps.to_image, torch.bincount

    def enlarged(maps, size):
        kinds.add(maps.dtype)
        return to_image(maps, size)

    def binned(values, weights=None, minlength=0):
        kinds.update(() if weights is None else (weights.dtype,))
        return bincount(values, weights, minlength)

    monkeypatch.setattr("pixalign.methods.diffpng.to_image", enlarged)
    monkeypatch.setattr(torch, "bincount", binned)
    for name, expected in wide.items():
        found = method(name).align(picture, CLASSES).heatmaps
        assert np.abs(found - expected).mean() < 0.01
    assert kinds == {torch.float32}


def test_steps_are_twenty_and_even():
    assert len(EVENLY) == 20
    assert (EVENLY[0], EVENLY[-1]) == (20, 200)
    assert set(np.diff(EVENLY)) == {9, 10}


def test_emphasis_is_that_of_compel():
    compel = pytest.importorskip("compel")
    backbone = small().backbone
    pipe = backbone.pipe
    weighting = compel.Compel(
        tokenizer=pipe.tokenizer,
        text_encoder=pipe.text_encoder,
        truncate_long_prompts=True,
    )
    with torch.no_grad():
        expected = weighting("a photo of (hot dog)++")[0]
    prompt = compose([Phrase("hot dog")], [0], "a photo of {}")
    texts = backbone.encode_text([prompt.text, ""]).embeds
    columns = backbone.token_spans(prompt, texts.shape[1]).columns[0]
    weights = torch.ones(1, texts.shape[1])
    weights[0, list(columns)] = WEIGHT
    found = weighted(texts[:1], texts[1], weights)[0]

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(texts[0], expected, atol=1e-2)


def test_missing_factors():
    sites = small("sdxl").backbone.sites
    assert nearest_factor(sites, 1) == 2
    assert nearest_factor(sites, 8) == 4
    assert nearest_factor(small().backbone.sites, 2) == 2
    assert shared({2, 4}) == pytest.approx({2: 1 / 6, 4: 5 / 6})
    with pytest.raises(ValueError, match="factor 4"):
        nearest_factor([], 4)


def observed(**options):
    """A reader after one pass with two texts, and what the pass was given."""
    backbone = small().backbone
    text = backbone.encode_text(["a photo of dog", "two cats"])
    z = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    reader = AttentionReader(backbone.sites, **options)
    reader.columns = torch.eye(77)[:, :6].expand(2, -1, -1)
    steps = backbone.schedule.at_indices([50, 100])
    return reader, lambda: backbone.predict(z, steps, text), text.embeds


def run(reader, predict):
    with reader.attached(small().backbone):
        return predict()


def test_heads_apart_have_the_mean_of_heads_together():
    apart, predict, _ = observed(per_head=True)
    mean, *_ = observed()
    run(apart, predict)
    run(mean, predict)
    for site, maps in apart.cross.items():
        assert maps.shape[:3] == (2, site.module.heads, 6)
        torch.testing.assert_close(maps.mean(1), mean.cross[site])
        assert maps.std(1).max() > 1e-3


def test_another_text_is_read_without_changing_the_pass():
    plain, predict, embeds = observed(keep_queries=True)
    other, *_ = observed()
    own = AttributionText.of(embeds.flip(0), [4, 6])
    other.text, other.text_mask = own.embeds, own.mask
    other.columns = torch.eye(6).expand(2, -1, -1)
    assert torch.equal(run(plain, predict), run(other, predict))

    for site, query in plain.queries.items():
        key = cross_keys(site.module, embeds.flip(0)).detach()
        for row, length in enumerate((4, 6)):
            logits = query[row] @ key[row, :, :length].transpose(1, 2) * site.module.scale
            expected = logits.softmax(-1).mean(0).T  # [length, h*w]
            torch.testing.assert_close(other.cross[site][row, :length].flatten(1), expected)
            assert (other.cross[site][row, length:] == 0).all()


@given(height=st.integers(2, 70), width=st.integers(2, 70), count=st.integers(2, 20))
def test_anchors_stand_on_the_grid(height, width, count):
    rows = anchor_rows((height, width), count)
    assert len(set(rows)) == len(rows) == min(count, height) * min(count, width)
    assert min(rows) >= 0
    assert max(rows) < height * width


def test_anchors_of_the_original():
    rows = anchor_rows((64, 64), 16)
    assert rows[:2] == [65, 69]
    assert rows[-1] == 61 * 64 + 61


@given(seed=st.integers(0, 1000), threshold=st.floats(0.01, 3))
def test_merging_gives_distributions(seed, threshold):
    logits = 2 * torch.randn(25, 25, generator=torch.Generator().manual_seed(seed))
    rows = logits.double().softmax(1)
    found = merged(rows, [0, 6, 12, 18, 24], threshold, 3)
    torch.testing.assert_close(found.sum(1), torch.ones(len(found), dtype=torch.float64))
    assert 1 <= len(found) <= 5
    assert len(merged(rows, [0, 6, 12, 18, 24], 1e3, 3)) == 1
    apart = merged(rows, [0, 6, 12, 18, 24], 1e-9, 3)
    torch.testing.assert_close(apart, rows[[0, 6, 12, 18, 24]])
    both = _divergence(rows, rows)
    torch.testing.assert_close(both, both.T)
    one = (rows[3] * (rows[3] / rows[8]).log()).sum() + (rows[8] * (rows[8] / rows[3]).log()).sum()
    torch.testing.assert_close(both[3, 8], one / 2)


# ---- with a model that has learnt something ----


def test_the_embedded_model_finds_objects_by_every_method():
    aligner, data = model_of(), open_dataset("lab", None, limit=2)
    sample = data[1]
    names = [data.classes[c] for c in sample.present]
    truth = np.stack([sample.truth == 1 + c for c in sample.present])
    options = {**OPTIONS, "diffseg": {"threshold": 0.1}}
    options["ovam-optimized"] = {"timesteps": (100,), "epochs": 10}
    for name in NAMES:
        one = METHODS[name](aligner, **options[name])
        extra = {"target_masks": truth} if one.supervised else {}
        heat = one.align(Image.fromarray(np.array(sample.image)), names, **extra).heatmaps
        for mask, own in zip(truth, heat, strict=True):
            assert own[mask].mean() > own[~mask].mean() + 0.3, name
