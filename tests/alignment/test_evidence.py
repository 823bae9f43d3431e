"""The ELBO pixel by pixel: against plain loops, and what must hold whatever the network says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pixalign as pa
from conftest import FAMILIES
from helpers import TEXTS, errors, model_of, refuse_above, setting, small
from pixalign.alignment.elbo import text_errors
from pixalign.alignment.evidence import blur, information, local_cosine, log_ratio, weigh
from pixalign.alignment.heatmaps import layer_agreement
from pixalign.alignment.plan import NoisedTimesteps
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import AttentionMaps, Evidence, Layers

QUICK = {"elbo_steps": 2, "collect_steps": 1}
CONFIG = pa.AlignConfig(method="dense", calibrate="evidence").resolved()
FORMS = ["cosine", "error"]


def some_evidence(seed, classes=3, size=(5, 7)):
    """As if d and r were of one channel at four timesteps."""
    generator = torch.Generator().manual_seed(seed)
    r = torch.randn(4, *size, generator=generator)
    d = torch.randn(classes, 4, *size, generator=generator) + 0.3 * r
    return Evidence((r * d).mean(1), d.square().mean(1))


# ---- the passes ----


@pytest.mark.parametrize("name", FAMILIES)
def test_errors_equal_one_pass_at_a_time(pipeline, name):
    backbone, latents, noise, steps = setting(pipeline(name), count=2, size=(16, 16))
    found = errors(backbone, latents, noise, steps, batch_size=3, by_position=True)

    assert found.texts == ("", *TEXTS)
    for j in range(2):
        step = steps[torch.tensor([j])]
        z = float(step.alpha) * latents + float(step.sigma) * noise[j : j + 1]
        empty = backbone.epsilon(z, step, backbone.unconditional())[0].numpy()
        missing = noise[j].numpy() - empty
        scale = (missing**2).mean()
        np.testing.assert_allclose(found.missed[j], missing, atol=2e-4)
        for i, text in enumerate(TEXTS, 1):
            said = backbone.epsilon(z, step, backbone.encode_text([text]))[0].numpy()
            added = said - empty
            where = f"{text} at {j}"
            np.testing.assert_allclose(
                found.maps[0, i, j], (missing * added).mean(0) / scale, atol=2e-4, err_msg=where
            )
            np.testing.assert_allclose(
                found.maps[1, i, j], (added**2).mean(0) / scale, atol=2e-4, err_msg=where
            )
            error = ((said - noise[j].numpy()) ** 2).mean()
            assert float(found.losses[i, j]) == pytest.approx(float(error), rel=1e-3)
        assert not found.maps[:, 0, j].any()  # the empty text adds nothing to itself


def test_errors_at_positions_are_the_losses(pipeline):
    found = errors(*setting(pipeline("sd1")), by_position=True)
    scale = found.losses[0]  # of the empty text: r^2
    for text in ("", *TEXTS):
        own = found.of([text])
        one_by_one = [own.at(torch.tensor([j])).by_position().mean() * scale[j] for j in range(4)]
        torch.testing.assert_close(torch.stack(one_by_one), own.losses[0], rtol=1e-4, atol=1e-6)


def test_batches_out_of_memory_and_plain_losses_agree(pipeline):
    run = setting(pipeline("sdxl"))
    whole, split = errors(*run, by_position=True), errors(*run, batch_size=1, by_position=True)
    torch.testing.assert_close(whole.maps, split.maps, rtol=1e-4, atol=1e-5)
    plain = errors(*run)
    assert plain.maps is None
    torch.testing.assert_close(plain.losses, whole.of(TEXTS).losses, rtol=1e-5, atol=1e-6)


def test_further_texts_join(pipeline):
    """Measured later, without the empty text again, they are what they would have been."""
    backbone, latents, noise, steps = setting(pipeline("sd1"))
    whole = errors(backbone, latents, noise, steps, by_position=True)
    how = ([NoisedTimesteps(steps, noise)], BatchSize(), Progress(0, "", show=False))
    (first,) = text_errors(backbone, latents, [TEXTS[:2]], *how, by_position=True)
    seen = []
    handle = refuse_above(10_000, backbone.denoiser, seen)
    try:
        (more,) = text_errors(
            backbone, latents, [TEXTS[2:]], *how, by_position=True, missed=[first.missed]
        )
    finally:
        handle.remove()
    assert sum(seen) == len(steps)
    assert more.texts == (TEXTS[2],)
    joined = first.joined(more)
    assert joined.texts == whole.texts
    for name in ("maps", "losses", "missed"):
        found, expected = getattr(joined, name), getattr(whole, name)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# ---- the formulas ----


def slow_blur(values, share):
    height, width = values.shape
    sigma = share * math.sqrt(height * width)
    out = np.zeros_like(values, dtype=np.float64)
    for y in range(height):
        for x in range(width):
            weights = [
                (math.exp(-((y - a) ** 2 + (x - b) ** 2) / (2 * sigma**2)), values[a, b])
                for a in range(height)
                for b in range(width)
            ]
            out[y, x] = sum(w * v for w, v in weights) / sum(w for w, _ in weights)
    return out


def slow_ratio(evidence, form, share):
    projection, energy = evidence.projection.double().numpy(), evidence.energy.double().numpy()
    maps = []
    for p, o in zip(projection, energy, strict=True):
        if form == "error":
            maps.append(slow_blur(2 * p - o, share))
        else:
            maps.append(slow_blur(p, share) / np.sqrt(slow_blur(o, share)))
    support = np.stack(maps)
    centred = support - support.mean(0)
    return centred / centred.std() - (centred / centred.std()).max(0)


@pytest.mark.parametrize("form", FORMS)
def test_log_ratio_equals_plain_loops(form):
    evidence = some_evidence(0)
    config = pa.AlignConfig(evidence_form=form, evidence_blur=0.1)
    expected = slow_ratio(evidence, form, 0.1)
    np.testing.assert_allclose(log_ratio(evidence, config), expected, rtol=1e-4, atol=1e-4)


def test_weighing_equals_plain_loops():
    evidence, heatmaps = some_evidence(1), torch.rand(3, 5, 7)
    ratio = slow_ratio(evidence, "cosine", CONFIG.evidence_blur)
    expected = []
    for heatmap, lead, energy in zip(heatmaps.numpy(), ratio, evidence.energy, strict=True):
        told = slow_blur(energy.double().numpy(), CONFIG.information_blur)
        told = (told - told.min()) / (told.max() - told.min())
        product = heatmap**0.85 * told**0.15 * np.exp(2 * np.minimum(0, lead + 0.5))
        expected.append((product - product.min()) / (product.max() - product.min()))
    found = weigh(heatmaps, evidence, CONFIG)
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-3, atol=1e-4)


@given(seed=st.integers(0, 99), classes=st.integers(1, 4), form=st.sampled_from(FORMS))
def test_the_best_class_has_ratio_zero(seed, classes, form):
    config = pa.AlignConfig(evidence_form=form)
    ratio = log_ratio(some_evidence(seed, classes), config)
    assert ratio.dtype == torch.float32
    assert torch.equal(ratio.amax(0), torch.zeros(5, 7))
    assert classes > 1 or not ratio.any()


@given(seed=st.integers(0, 99), form=st.sampled_from(FORMS))
def test_classes_may_stand_in_any_order(seed, form):
    evidence, heatmaps = some_evidence(seed), torch.rand(3, 9, 8)
    config = pa.AlignConfig(evidence_form=form, information_weight=0.2)
    order = torch.randperm(3, generator=torch.Generator().manual_seed(seed))
    moved = Evidence(evidence.projection[order], evidence.energy[order])
    one, other = weigh(heatmaps, evidence, config)[order], weigh(heatmaps[order], moved, config)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 99), guidance=st.floats(0.1, 20))
def test_the_cosine_does_not_know_built_in_guidance(seed, guidance):
    """eps_0 + w (eps_i - eps_0): projections grow by w, energies by w^2."""
    evidence = some_evidence(seed)
    guided = Evidence(guidance * evidence.projection, guidance**2 * evidence.energy)
    torch.testing.assert_close(
        log_ratio(guided, CONFIG), log_ratio(evidence, CONFIG), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(
        information(guided, CONFIG), information(evidence, CONFIG), rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(
        local_cosine(guided, 0.1), local_cosine(evidence, 0.1), rtol=1e-3, atol=1e-4
    )


def test_the_error_form_knows_it():
    evidence = some_evidence(0)
    guided = Evidence(3 * evidence.projection, 9 * evidence.energy)
    config = pa.AlignConfig(evidence_form="error")
    assert not torch.allclose(log_ratio(guided, config), log_ratio(evidence, config), atol=0.1)


@pytest.mark.parametrize("form", FORMS)
def test_a_class_against_itself_gives_no_evidence(form):
    one = some_evidence(3, classes=1)
    twice = Evidence(one.projection.repeat(2, 1, 1), one.energy.repeat(2, 1, 1))
    assert not log_ratio(twice, pa.AlignConfig(evidence_form=form)).any()


def test_a_text_that_changes_nothing_is_no_nan():
    nothing = Evidence(torch.zeros(2, 4, 4), torch.zeros(2, 4, 4))
    heatmaps = torch.rand(2, 8, 8)
    assert not log_ratio(nothing, CONFIG).any()
    found = weigh(heatmaps, nothing, CONFIG)
    assert torch.isfinite(found).all()
    assert torch.equal(found.flatten(1).argmax(1), heatmaps.flatten(1).argmax(1))


@pytest.mark.parametrize(("size", "larger"), [((8, 8), (32, 32)), ((4, 16), (16, 64))])
def test_blurs_are_shares_of_the_side(size, larger):
    """The same picture on a finer grid is blurred alike."""
    coarse = torch.zeros(1, *size)
    coarse[0, size[0] // 2, size[1] // 2] = 1
    fine = torch.nn.functional.interpolate(coarse[None], larger, mode="nearest")[0]
    share = 0.2
    small_map, large_map = blur(coarse, share), blur(fine, share)
    pooled = torch.nn.functional.adaptive_avg_pool2d(large_map, size)
    torch.testing.assert_close(pooled, small_map, rtol=0.1, atol=0.01)
    torch.testing.assert_close(blur(torch.ones(1, *size), share), torch.ones(1, *size))


# ---- layers ----


def test_layers_that_agree_count():
    generator = torch.Generator().manual_seed(0)
    ratio = torch.randn(3, 8, 8, generator=generator)
    noise = torch.randn(3, 8, 8, generator=generator)
    cross = (5 + ratio, 50 + noise, 5 - ratio)
    layers = Layers(("good", "noise", "opposite"), (1, 1, 1), 1.0)
    maps = AttentionMaps(cross, layers, (), (8, 8))
    found = layer_agreement(maps, ratio)
    assert found["good"] == pytest.approx(1 / float(cross[0].mean()), rel=1e-4)
    centred = [x - x.mean(0) for x in (noise, ratio)]
    expected = np.corrcoef(*(x.flatten().double().numpy() for x in centred))[0, 1]
    assert found["noise"] * float(cross[1].mean()) == pytest.approx(
        max(0.0, expected) ** 2, abs=1e-5
    )
    assert found["opposite"] == 0
    alone = AttentionMaps(tuple(x[:1] for x in cross), layers, (), (8, 8))
    weights = layer_agreement(alone, ratio[:1])
    assert all(
        weight * float(layer.mean()) == pytest.approx(1)
        for weight, layer in zip(weights.values(), alone.cross, strict=True)
    )


# ---- whole alignments ----


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["dense", "likelihood"])
def test_every_family_aligns(name, method, photo):
    model = model_of(small(name), config=pa.AlignConfig(**QUICK))
    result = model.align(photo, ["dog", "cat", "tree"], method=method)
    assert result.heatmaps.shape == (3, 80, 120)
    assert np.isfinite(result.heatmaps).all()
    assert result.evidence.shape == (3, 16, 16)
    assert result.evidence.dtype == np.float32
    assert np.array_equal(result.evidence.max(0), np.zeros((16, 16), np.float32))
    texts = {"dense": 3 + 1, "likelihood": 3 + 3 + 1}[method]
    collected = {"dense": 1, "likelihood": 0}[method]
    assert result.provenance["forwards"] == {"collect": collected, "elbo": texts * 2}
    assert result.config.edges == "guided"
    again = model.align(photo, ["tree", "dog", "cat"], method=method)
    np.testing.assert_allclose(again.heatmaps[[1, 2, 0]], result.heatmaps, atol=1e-4)


def test_leaving_out_needs_prompts_of_its_own(photo):
    model = model_of(small("sd1"), config=pa.AlignConfig(**QUICK))
    alone = model.align(photo, ["dog"], method="likelihood")
    assert alone.provenance["forwards"]["elbo"] == 2 * 2  # "dog", and without it nothing
    plain = pa.AlignConfig(leave_one_out=False, **QUICK)
    without = model.align(photo, ["dog", "cat", "tree"], method="likelihood", config=plain)
    assert without.provenance["forwards"] == {"collect": 0, "elbo": 4 * 2}
    many = ["dog", "cat", "tree", "car", "zebra", "chair", "bench", "clock", "apple", "bowl"] * 3
    names = [f"{name} {number}" for number, name in enumerate(many)]
    long = model.align(photo, names, method="likelihood", config=plain)
    assert long.heatmaps.shape[0] == 30
    with pytest.raises(ValueError, match="caption is 'a dog'; likelihood reads none"):
        model.align(photo, ["dog"], method="likelihood", caption="a dog")


def test_evidence_calibrates_a_baseline(photo):
    model = model_of(small("sd1"), config=pa.AlignConfig(**QUICK))
    plain = model.align(photo, ["dog", "cat"], method="daam")
    weighed = model.align(photo, ["dog", "cat"], method="daam", calibrate="evidence")
    assert plain.trust is None
    assert plain.evidence is None
    assert weighed.provenance["forwards"]["elbo"] == 3 * 2
    dense = model.align(photo, ["dog", "cat"], method="dense")
    np.testing.assert_allclose(weighed.evidence, dense.evidence, atol=1e-4)
    assert not np.allclose(plain.heatmaps, weighed.heatmaps, atol=0.01)


def test_layers_may_agree_with_evidence(photo):
    model = model_of(small("sd1"))
    config = pa.AlignConfig(cross_weights="agreement", **QUICK)
    result = model.align(photo, ["dog", "cat"], method="attention", config=config)
    assert result.provenance["forwards"] == {"collect": 1, "elbo": 3 * 2}
    assert result.evidence is not None
    other = model.align(photo, ["dog", "cat"], config=pa.AlignConfig.uncalibrated(**QUICK))
    assert not np.allclose(result.heatmaps, other.heatmaps, atol=0.01)


def test_scores_do_not_act_beside_evidence(photo):
    model = model_of(small("sd1"), config=pa.AlignConfig(**QUICK))
    with pytest.raises(ValueError, match="calibrate of dense with scores is 'elbo'"):
        model.align(photo, ["dog", "cat"], method="dense", scores=[0.5, 1.0])
    mild = pa.AlignConfig(gamma=0.9, **QUICK)
    one, other = (
        model.align(photo, ["dog", "cat"], method="dense", config=c) for c in (mild, None)
    )
    assert np.array_equal(one.heatmaps, other.heatmaps)
    assert not np.array_equal(one.scores, other.scores)
