"""Verdicts, absence and the ranking of candidates."""

import dataclasses
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

import pixalign as pa
from helpers import model_of, refuse_above, small
from pixalign.alignment.trust import doubts, explained, presence, standing, there, trust
from pixalign.bench.datasets import open_dataset
from pixalign.core.values import Evidence

CONFIG = pa.AlignConfig(method="dense", calibrate="evidence").resolved()
PHRASES = tuple(map(pa.Phrase, ("dog", "cat", "car")))
QUICK = {"elbo_steps": 2, "collect_steps": 1}
KEEP = {"absent_below": 0}


def halves(*signs):
    """Evidence of classes that explain (+) or contradict (-) the left and the right half."""
    projection = torch.zeros(len(signs), 8, 8)
    for index, (left, right) in enumerate(signs):
        projection[index, :, :4], projection[index, :, 4:] = left, right
    return Evidence(projection, torch.ones(len(signs), 8, 8))


def pointing(*sides):
    maps = torch.zeros(len(sides), 8, 8)
    for index, side in enumerate(sides):
        maps[index, :, {"left": slice(0, 4), "right": slice(4, 8), "none": slice(0, 0)}[side]] = 1
    return maps


def test_verdicts_by_hand():
    evidence = halves((0.8, 0.0), (0.0, 0.8), (0.05, 0.05))
    found = trust(PHRASES, evidence, pointing("left", "left", "right"), CONFIG)
    assert [str(each) for each in found] == ["sure", "confused with dog", "absent"]
    assert found[0].numbers["lead"] > 0.3 > 0 == found[0].numbers["others_lead"]
    assert found[1].numbers["lead"] < 0 < 0.3 < found[1].numbers["others_lead"]
    notes = doubts(PHRASES, found)
    assert len(notes) == 2
    assert "class 'cat' points where 'dog' explains the picture better" in notes[0]
    assert "class 'car' is likely not in the picture (standing 0.00%)" in notes[1]
    assert doubts(PHRASES, found, own_bounds=False)[2].startswith("these verdicts have the bounds")
    assert doubts(PHRASES[:1], found[:1], own_bounds=False) == []


def test_a_map_that_points_nowhere_is_blind():
    evidence = halves((0.8, 0.0), (0.0, 0.8))
    found = trust(PHRASES[:2], evidence, pointing("left", "none"), CONFIG)
    assert [each.verdict for each in found] == ["sure", "blind"]
    assert found[1].other is None


def test_one_class_is_sure_or_absent():
    for level, verdict in ((0.5, "sure"), (0.04, "absent")):
        (found,) = trust(PHRASES[:1], halves((level, 0.0)), pointing("left"), CONFIG)
        assert found.verdict == verdict


def test_only_a_class_that_is_there_is_named():
    """The third explains the region best, but hardly anywhere; the first is named."""
    evidence = halves((0.8, 0.8), (0.0, 0.0), (0.0, 0.0))
    evidence.projection[2, 4, 1] = 6.0
    maps = pointing("left", "none", "right")
    maps[1, 4, 1] = 1
    strict = dataclasses.replace(CONFIG, absent_below=0.02, absent_blur=0.0)
    found = trust(PHRASES, evidence, maps, dataclasses.replace(strict, doubt_below=0.0))
    assert [each.verdict for each in found] == ["sure", "absent", "confused"]
    lead = explained(evidence, strict)[2, 4, 1]
    assert lead > 10 * found[2].numbers["others_lead"] > 0
    assert found[2].other == "dog"


def test_what_is_explained_is_the_fall_of_the_error():
    """Of steps d and what was missing r: |r|^2 - |r - c d|^2, with the c that fits best, if < 1."""
    generator = torch.Generator().manual_seed(0)
    missed = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    sharp = dataclasses.replace(CONFIG, absent_blur=0.0)
    for strength in (0.5, 3.0):
        step = strength * (missed + 0.5 * torch.randn(4, 6, 5, generator=generator))
        evidence = Evidence((missed * step).mean(0)[None], step.square().mean(0)[None])
        fits = (missed * step).sum(0) > 0
        best = float((missed * step)[:, fits].sum() / step[:, fits].square().sum())
        assert (best < 1) == (strength > 1)
        fall = (missed.square() - (missed - min(1.0, best) * step).square()).mean(0)
        torch.testing.assert_close(explained(evidence, sharp)[0], fall, rtol=1e-4, atol=1e-6)


@given(st.integers(0, 10**6), st.floats(1, 50))
def test_built_in_guidance_changes_no_verdict(seed, strength):
    """Steps that are exaggerated are shortened again, to the same ones."""
    evidence = drawn(seed, 4)
    leading = explained(exaggerated(evidence, 10), CONFIG)
    more = explained(exaggerated(evidence, 10 * strength), CONFIG)
    torch.testing.assert_close(more, leading, rtol=1e-3, atol=1e-4)


def exaggerated(evidence, strength):
    return Evidence(strength * evidence.projection, strength**2 * evidence.energy)


def drawn(seed, count, size=6):
    """Evidence of random steps of random lengths, under random noise."""
    generator = torch.Generator().manual_seed(seed)
    missed = torch.randn(3, size, size, generator=generator)
    steps = missed * torch.rand(count, 1, size, size, generator=generator)
    steps += 0.3 * torch.randn(count, 3, size, size, generator=generator)
    return Evidence((missed * steps).mean(1), steps.square().mean(1))


@given(st.integers(0, 10**6), st.integers(1, 7))
def test_standing_by_a_slow_reference(seed, count):
    """Class after class goes, the one first that alone explains least of what is left."""
    evidence = drawn(seed, count)
    shares = explained(evidence, CONFIG)
    left, levels, reached = list(range(count)), [0.0] * count, 0.0
    while left:
        alone = {}
        for index in left:
            rivals = [shares[other] for other in left if other != index]
            rest = torch.stack([torch.zeros_like(shares[0]), *rivals]).amax(0)
            alone[index] = float((shares[index] - rest).clamp_min(0).mean())
        gone = min(left, key=lambda index: alone[index])
        reached = max(reached, alone[gone])
        levels[gone] = reached
        left.remove(gone)
    assert standing(evidence, CONFIG).tolist() == pytest.approx(levels, abs=1e-6)
    assert (standing(evidence, CONFIG) <= presence(evidence, CONFIG) + 1e-6).all()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    mixed = Evidence(evidence.projection[order], evidence.energy[order])
    moved = standing(mixed, CONFIG).tolist()
    assert moved == pytest.approx([levels[index] for index in order], abs=1e-6)


def test_a_name_that_others_explain_better_is_not_there():
    evidence = halves((0.8, 0.0), (0.6, 0.0), (0.0, 0.7))
    assert there(evidence, CONFIG).tolist() == [True, False, True]
    alone = Evidence(evidence.projection[1:2], evidence.energy[1:2])
    assert there(alone, CONFIG).tolist() == [True]
    assert torch.allclose(standing(alone, CONFIG), presence(alone, CONFIG))


def test_of_two_names_for_one_thing_one_stays():
    same = halves((0.8, 0.0), (0.8, 0.0), (0.0, 0.7))
    assert there(same, CONFIG).sum() == 2
    assert there(same, CONFIG)[2]


def test_fewer_timesteps_ask_for_more():
    evidence = halves((0.8, 0.0), (0.0, 0.7))
    lowest = standing(evidence, CONFIG).min(0)
    near = dataclasses.replace(CONFIG, absent_below=float(lowest.values) / 1.5)
    assert there(evidence, near).all()
    few = dataclasses.replace(near, elbo_steps=5)  # a quarter: twice the bound
    assert not there(evidence, few)[lowest.indices]


def test_verdicts_are_none_without_evidence(photo):
    model = model_of(small("sd1"), config=pa.AlignConfig(**QUICK))
    assert model.align(photo, ["dog", "cat"], method="elbo").trust is None
    result = model.align(photo, ["dog", "cat"], method="dense")
    assert [type(each) for each in result.trust] == [pa.Trust] * 2
    saved = result.to_dict()["classes"][0]["trust"]
    assert saved["numbers"]["presence"] == pytest.approx(result.trust[0].numbers["presence"])


@pytest.mark.parametrize("method", ["dense", "likelihood", "attention", "daam"])
def test_dropped_classes_keep_their_place(photo, method):
    """The maps of the others are those of a call without the dropped ones."""
    model = model_of(small("sd1"))
    names = ["dog", "cat", "car", "tree"]
    seen = model.align(photo, names, method="dense", config=pa.AlignConfig(**KEEP, **QUICK))
    levels = [each.numbers["standing"] for each in seen.trust]
    bound = (sorted(levels)[1] + sorted(levels)[2]) / 2
    config = pa.AlignConfig(absent_below=bound / 10**0.5, **QUICK)  # a tenth of 20 timesteps
    dropped = model.align(photo, names, method=method, config=config, absent="drop")
    kept = [index for index, level in enumerate(levels) if level >= bound]
    assert len(kept) == 2
    alone = model.align(photo, [names[index] for index in kept], method=method, config=config)
    np.testing.assert_allclose(dropped.heatmaps[kept], alone.heatmaps, atol=1e-4)
    gone = [index for index in range(4) if index not in kept]
    assert not dropped.heatmaps[gone].any()
    assert dropped.classes == tuple(names)
    assert [dropped.trust[index].verdict for index in gone] == ["absent"] * 2
    assert np.isneginf(dropped.evidence[gone]).all()
    everything_gone = pa.AlignConfig(absent_below=1, **QUICK)
    empty = model.align(photo, names, method=method, config=everything_gone, absent="drop")
    assert not empty.heatmaps.any()
    assert not empty.mask().any()


def test_candidates_are_ranked(photo, monkeypatch):
    model = model_of(small("sd1"))
    config = pa.AlignConfig(absent_below=0.001, **QUICK)
    names = ["dog", "cat", "car", "tree", "zebra"]
    found = model.present(photo, names, config=config)
    assert sorted(each.name for each in found) == sorted(names)
    levels = [each.standing for each in found]
    assert levels == sorted(levels, reverse=True)
    assert all(each.present == (each.standing >= 0.001 * 10**0.5) for each in found)
    monkeypatch.setattr("pixalign.alignment.present._TOGETHER", 2)
    split = model.present(photo, names, config=config)
    assert [each.standing for each in split] == pytest.approx(levels, abs=1e-4)
    aligned = model.align(photo, names, method="dense", config=config)
    by_name = dict(zip(names, aligned.trust, strict=True))
    for each in found:
        numbers = by_name[each.name].numbers
        assert numbers["presence"] == pytest.approx(each.presence, abs=1e-4)
        assert numbers["standing"] == pytest.approx(each.standing, abs=1e-4)


def test_the_embedded_model_knows_what_is_there():
    """Its own classes stand first among twenty, and absent names take nothing from them."""
    model = pa.load(device="cpu", dtype="float32")
    dataset = open_dataset("lab", None, "val", 3)
    kept = 0
    for sample in (dataset[0], dataset[1]):
        own = [dataset.classes[label] for label in sample.present]
        others = [name for name in dataset.classes if name not in own][::6][:16]
        mixed = model.align(sample.image, [*own, *others[:5]], absent="drop")
        assert "absent" not in [each.verdict for each in mixed.trust[: len(own)]]
        kept += sum(each.verdict != "absent" for each in mixed.trust[len(own) :])
    assert kept <= 1
    found = model.present(sample.image, [*others, *own])
    assert {each.name for each in found[: len(own)]} == set(own)
    alone = model.align(sample.image, own)
    assert (alone.mask() == mixed.mask()).mean() > 0.99


def test_given_scores_hold_whatever_is_measured(photo):
    model = model_of(small("sd1"))
    for config in ({"absent": "drop", **KEEP}, {"cross_weights": "agreement"}):
        given = pa.AlignConfig(**config, **QUICK)
        result = model.align(photo, ["dog", "cat"], method="elbo", scores=[0.5, 0.9], config=given)
        assert result.scores.tolist() == pytest.approx([0.5, 0.9])
        assert result.trust is not None
    plain = pa.AlignConfig(**QUICK)
    alone = model.align(photo, ["dog", "cat"], method="elbo", scores=[0.5, 0.9], config=plain)
    kept = pa.AlignConfig(absent="drop", **KEEP, **QUICK)
    same = model.align(photo, ["dog", "cat"], method="elbo", scores=[0.5, 0.9], config=kept)
    np.testing.assert_allclose(same.heatmaps, alone.heatmaps, atol=1e-5)


def test_exponents_are_those_that_acted(photo):
    model = model_of(small("sd1"), config=pa.AlignConfig(**QUICK))
    assert model.align(photo, ["dog", "cat"], method="dense").exponents.tolist() == [1, 1]
    assert model.align(photo, ["dog", "cat"], method="elbo").exponents.max() > 1


def test_passes_of_a_drop_are_counted(photo, monkeypatch):
    """Further texts wait until it is known which classes stay; nothing is measured twice."""
    model, seen, bars = model_of(small("sd1")), [], []
    names, config = ["dog", "cat", "car"], pa.AlignConfig(**KEEP, **QUICK)

    def drawn(**options):
        bars.append(tqdm(**options | {"disable": False, "file": io.StringIO()}))
        return bars[-1]

    monkeypatch.setattr("pixalign.core.progress.tqdm", drawn)
    model.progress = True
    handle = refuse_above(10_000, model.backbone.denoiser, seen)
    try:
        result = model.align(photo, names, method="likelihood", config=config, absent="drop")
    finally:
        handle.remove()
    # Three classes and the empty text; then three texts without a class.
    assert sum(seen) == 2 * (4 + 3)
    assert result.provenance["forwards"]["elbo"] == 2 * 7
    assert bars[0].n == bars[0].total == 2 * 7
    at_once = model.align(photo, names, method="likelihood", config=config)
    np.testing.assert_allclose(result.heatmaps, at_once.heatmaps, atol=1e-4)


def test_a_drop_makes_fewer_passes_than_were_expected(photo, monkeypatch):
    """Classes that are dropped need no further texts; the bar ends where the passes do."""
    model, bars = model_of(small("sd1")), []

    def drawn(**options):
        bars.append(tqdm(**options | {"disable": False, "file": io.StringIO()}))
        return bars[-1]

    monkeypatch.setattr("pixalign.core.progress.tqdm", drawn)
    model.progress = True
    gone = pa.AlignConfig(absent_below=1, **QUICK)
    for method in ("likelihood", "dense"):
        result = model.align(photo, ["dog", "cat"], method=method, config=gone, absent="drop")
        assert sum(result.provenance["forwards"].values()) == 2 * 3
        assert bars[-1].n == bars[-1].total == 2 * 3
