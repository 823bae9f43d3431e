"""The study measures what ships, its controls are what they say, and its figures add up."""

import json
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pixalign as pa
from lab import study as studying
from lab import trial as trying
from lab import tune as choosing
from lab import variants as varying
from lab.correlation import correlations, spearman
from lab.evaluate import frequency_thirds
from lab.study import AUTOMATIC, PARTS, Outcome, study
from lab.summary import describe_stress, summarise, table
from lab.trial import Measured, measure
from lab.variants import (
    CONSTANTS,
    RANDOM_DRAWS,
    Plan,
    by_elbo,
    constant,
    elbo_of,
    every_order,
    inverse,
    plan,
    shuffled,
    strength,
)
from pixalign import cli
from pixalign.alignment.calibrate import exponents
from pixalign.alignment.heatmaps import enlarge, heatmaps_under, otsu, to_image
from pixalign.backbones.locations import EMBEDDED
from pixalign.backbones.model_settings import model_settings
from pixalign.bench.metrics import (
    THRESHOLDS,
    Tally,
    bootstrap_weights,
    class_ious,
    curve,
    interval,
    tally,
    threshold_index,
)
from pixalign.config import AlignConfig
from pixalign.diffusion.schedule import DiscreteSchedule
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import LabelledScene, labelled_scenes
from pixalign.scenes.render import render
from pixalign.scenes.sample import sample_scenes

FEW = {"elbo_steps": 2, "collect_steps": 2}
FEW_OFFICIAL = {"elbo_timesteps": (1, 501), "collect_timesteps": (20, 200)}
OWN = {"gamma": 2 / 3, "centred": True, "threshold": 0.46, "uncalibrated_threshold": 0.45}


def preset(name, **overrides):
    """A preset that takes few steps."""
    return AlignConfig.preset(name, **(FEW_OFFICIAL if name == "official" else FEW) | overrides)


@pytest.fixture(scope="module")
def aligner():
    """The embedded model."""
    return pa.Aligner.from_pretrained(device="cpu")


@pytest.fixture
def few_steps(monkeypatch):
    """Plans of few steps."""
    monkeypatch.setattr(varying, "AlignConfig", SimpleNamespace(preset=preset))


@pytest.fixture(scope="module")
def watched(aligner):
    """The main part on a test scene of 2, 3 and 4 objects each: (outcome, plan, scenes)."""
    scenes, measured = [], []

    def watch(backbone, group, *rest):
        scenes.extend(group)
        measured.extend(measure(backbone, group, *rest))
        return measured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varying, "AlignConfig", SimpleNamespace(preset=preset))
        patch.setattr(trying, "measure", watch)
        outcome = studying.run(aligner, "test", 3, ("main",), show=False)
        planned = plan(aligner.backbone.family, aligner.own, ("main",))
    return outcome, planned, list(zip(scenes, measured, strict=True))


@pytest.fixture
def ran(watched):
    return watched[0]


def picture_of(subject):
    return np.round(subject.picture.permute(1, 2, 0).numpy() * 255).astype(np.uint8)


def aligned(aligner, image, subject, config):
    return aligner.align(image, subject.names, config=config, seed=subject.number)


def alone(heatmaps, subject, image=0):
    """The tally of one alignment."""
    labels = [label + 1 for label in subject.labels]
    return tally(torch.as_tensor(heatmaps)[None], subject.truth, labels, image)[0]


def same_rows(first, second, pixels=0):
    """``pixels`` may lie on a threshold, where rounding decides."""
    for name in ("image", "label", "true"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    for name in ("hits", "claimed"):
        assert (getattr(first, name) - getattr(second, name)).abs().max() <= pixels, name


# ---- the study measures what ships ----


def test_the_study_measures_what_ships(aligner, watched):
    outcome, planned, scenes = watched
    by_name = {variant.name: variant for variant in planned.variants}
    strengths = set()
    for image, (subject, measured) in enumerate(scenes):
        encoded = aligner.encode(picture_of(subject))
        for name in ("default", "uncalibrated", "paper", "official")[: 3 if image else 4]:
            variant = by_name[name]
            powers = variant.exponents(subject, measured)
            config = planned.collecting[variant.maps]
            heatmaps = heatmaps_under(
                measured.maps[variant.maps], config.cross_weights, powers[None], (128, 128)
            )[0]
            shipped = aligned(aligner, encoded, subject, preset(name))
            np.testing.assert_allclose(powers, shipped.exponents, atol=1e-4, err_msg=name)
            np.testing.assert_allclose(heatmaps, shipped.heatmaps, atol=1e-5, err_msg=name)
            strengths.add(round(float(powers.max() / powers.min()), 3))
            rows = outcome.tallies[name][image]
            same_rows(rows, alone(shipped.heatmaps, subject, image), pixels=2)
            if name == "default":
                np.testing.assert_allclose(elbo_of(measured), shipped.elbo, rtol=1e-5)
                at = threshold_index(shipped.config.threshold)
                claimed = np.bincount(shipped.mask().ravel(), minlength=len(subject.labels) + 1)
                np.testing.assert_allclose(rows.claimed[:, at], claimed, atol=2)
    assert strengths == {1.0, 1.5, 3.0}  # of uncalibrated, default, and the paper's two


def test_what_a_run_knows(aligner, ran):
    group = labelled_scenes(draw_scenes("test", 3), 128, "cpu")
    assert [len(pair["labels"]) for pair in ran.pairs] == [2, 3, 4]
    for subject, pair in zip(group, ran.pairs, strict=True):
        assert (tuple(pair["labels"]), tuple(pair["area"])) == (subject.labels, subject.area)
        assert tuple(pair["visible"]) == subject.visible
        assert (min(pair["norm"]), max(pair["norm"])) == (0, 1)
        assert np.argmax(pair["norm"]) == np.argmax(pair["elbo"])
        assert min(pair["activation"]) > 1
    assert set(ran.automatic) == set(AUTOMATIC)
    plain = aligned(aligner, picture_of(group[0]), group[0], preset("uncalibrated"))
    chosen = otsu(torch.from_numpy(plain.heatmaps.max(0)))
    assert THRESHOLDS[ran.automatic["uncalibrated"][0]] == pytest.approx(chosen, abs=0.0051)


def test_no_order_suits_better_than_the_best(ran):
    """At the default threshold, where the best order was chosen; the random ones are orders too."""
    at = threshold_index(AlignConfig().resolved(own=model_settings(EMBEDDED)).threshold)

    def suits(name, image):
        rows = ran.tallies[name][image]
        union = rows.claimed + rows.true[:, None] - rows.hits
        return float((rows.hits / union.clamp_min(1))[:, at].mean())

    for label in ("", "-3"):
        others = [f"random{label}:{draw}" for draw in range(RANDOM_DRAWS)] + [f"default{label}"]
        for image in range(3):
            best = suits(f"best-order{label}", image)
            assert best >= max(suits(name, image) for name in others)
        # With two classes there are two orders: as it is, and turned round.
        both = [suits(f"{name}{label}", 0) for name in ("default", "reversed")]
        assert suits(f"best-order{label}", 0) == pytest.approx(max(both), abs=1e-3)


# ---- subjects ----


def test_subjects_hold_the_truth():
    batch = draw_scenes("test", 45)
    drawn, group = render(batch, size=64), labelled_scenes(batch, 64, "cpu", first=7)
    shares = drawn.visible_shares()
    assert [subject.number for subject in group] == list(range(7, 52))
    singles = copies = 0
    for index, subject in enumerate(group):
        count = len(subject.labels)
        assert subject.truth.dtype == torch.int64
        assert subject.truth.unique().tolist() == list(range(count + 1))
        numbers = torch.tensor([0, *[label + 1 for label in subject.labels]])
        assert torch.equal(numbers[subject.truth], drawn.masks[index].long())
        for place, label in enumerate(subject.labels):
            pixels = int((subject.truth == place + 1).sum())
            assert pixels > 0
            assert subject.area[place] == pytest.approx(pixels / 64**2)
            assert 0 < subject.visible[place] <= 1
            slots = np.flatnonzero(batch.labels[index] == label)
            if len(slots) == 1:
                singles += 1
                seen = float(shares[index, slots[0]])
                assert subject.visible[place] == pytest.approx(seen, abs=1e-6)
            else:
                copies += 1
                whole = int(drawn.areas[index, slots].sum())
                assert subject.visible[place] == pytest.approx(pixels / whole)
        said = batch.captions[index].removeprefix("a photo of ").split(", ")
        assert subject.names == [name for name in said if name in subject.names]
        assert {label for label in batch.labels[index] if label >= 0} >= set(subject.labels)
        levels = subject.picture.double() * 255
        assert (levels - levels.round()).abs().max() < 1e-4
        assert (subject.picture - drawn.images[index]).abs().max() <= 0.5 / 255 + 1e-6
    assert singles > 50
    assert copies > 0
    assert any(subject.names != sorted(subject.names) for subject in group)


def test_subjects_are_named_in_the_captions_order():
    batch = sample_scenes("val", 0, 1, objects=3)
    turned = replace(batch, order=batch.order[:, ::-1].copy())
    (first,), (second,) = (labelled_scenes(one, 64, "cpu") for one in (batch, turned))
    assert first.labels == second.labels[::-1]
    assert first.area == second.area[::-1]
    order = {label: place for place, label in enumerate(first.labels)}
    known = [0, *[order[label] + 1 for label in second.labels]]
    assert torch.equal(torch.tensor(known)[second.truth], first.truth)


def test_what_is_wholly_hidden_is_not_asked_for():
    batch = sample_scenes("val", 0, 1, objects=3)
    centres, sizes = batch.centres.copy(), batch.sizes.copy()
    centres[0, :3], sizes[0, :3] = ((0.25, 0.25), (0.7, 0.7), (0.7, 0.7)), (0.3, 0.03, 0.5)
    hidden = replace(batch, centres=centres, sizes=sizes)
    assert render(hidden, size=64).visible_shares()[0, 1] == 0
    (subject,) = labelled_scenes(hidden, 64, "cpu")
    assert set(subject.labels) == set(batch.labels[0, [0, 2]].tolist())
    assert subject.truth.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12])
def test_scenes_are_of_two_three_and_four_objects_in_equal_parts(count):
    batch = draw_scenes("val", count)
    assert len(batch) == count
    objects = (batch.labels >= 0).sum(1)
    parts = np.bincount(objects, minlength=5)
    assert parts[:2].sum() == 0
    assert parts[2:].max() - parts[2:].min() <= 1
    assert (np.diff(objects) >= 0).all()


# ---- exponents of the variants ----

STEPS = DiscreteSchedule(torch.linspace(0.999, 0.01, 100)).at_indices([10, 60])
THREE = torch.tensor([[0.2, 0.4], [0.5, 0.5], [0.3, 0.9]])  # ELBO 0.3, 0.5, 0.6: norm 0, 2/3, 1


def of_losses(losses, number=0):
    """A subject of so many classes and its measured losses."""
    nothing = torch.zeros(3, 1, 1)
    whole = (1.0,) * len(losses)
    subject = LabelledScene(nothing, nothing[0], tuple(range(len(losses))), whole, whole, number)
    return subject, Measured({}, {"20": losses}, {"20": STEPS})


def powers_of(exponents, losses=THREE, number=0):
    return exponents(*of_losses(losses, number)).double()


def assert_powers(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_exponents_by_hand():
    assert_powers(powers_of(by_elbo(1 / 3)), [1, 3 ** (2 / 3), 3])
    assert_powers(powers_of(by_elbo(1 / 3, turned=True)), [3, 3 ** (1 / 3), 1])
    assert_powers(powers_of(inverse(1 / 3)), [1, 3 ** (-2 / 3), 1 / 3])
    assert_powers(powers_of(constant(1.5)), [1.5, 1.5, 1.5])
    mean = 3 ** (5 / 9)
    assert_powers(
        powers_of(by_elbo(1 / 3, centred=True)), [1 / mean, 3 ** (2 / 3) / mean, 3 / mean]
    )
    assert_powers(powers_of(inverse(1 / 3, centred=True)), [mean, mean / 3 ** (2 / 3), mean / 3])
    assert_powers(strength(elbo_of(of_losses(THREE)[1])), [0, 2 / 3, 1])


def test_the_likelihood_weighs_timesteps():
    slopes = -STEPS.lambda_slope
    bounds = (THREE.double() * slopes).sum(1) / slopes.sum()
    assert_powers(elbo_of(of_losses(THREE)[1], weighting="likelihood"), bounds)
    norm = (bounds - bounds.min()) / (bounds.max() - bounds.min())
    assert_powers(powers_of(by_elbo(0.5, weighting="likelihood")), 2**norm)
    assert not torch.allclose(bounds, THREE.double().mean(1), rtol=1e-2)


losses_of_classes = st.lists(st.integers(1, 10**4), min_size=1, max_size=5, unique=True).map(
    lambda levels: torch.tensor(levels, dtype=torch.float64)[:, None].repeat(1, 2) / 10**4
)


@given(losses_of_classes, st.floats(0.1, 1))
def test_centred_exponents_have_geometric_mean_one(losses, gamma):
    for kind in (by_elbo(gamma, centred=True), by_elbo(gamma, turned=True, centred=True),
                 inverse(gamma, centred=True), shuffled(gamma, 1, centred=True)):  # fmt: skip
        assert float(powers_of(kind, losses).log().mean()) == pytest.approx(0, abs=1e-5)
    scores = 1 / powers_of(by_elbo(gamma), losses)
    plain, centred = exponents(scores), exponents(scores, centred=True)
    assert_powers(centred / centred[0], plain / plain[0])


@given(losses_of_classes, st.floats(0.1, 0.9))
def test_reversed_exponents_are_those_of_one_minus_norm(losses, gamma):
    bounds = losses[:, 0]
    span = (bounds.max() - bounds.min()).clamp_min(1e-9)
    norm = (bounds - bounds.min()) / span
    assert_powers(powers_of(by_elbo(gamma), losses), gamma**-norm)
    if len(losses) > 1:
        assert_powers(powers_of(by_elbo(gamma, turned=True), losses), gamma ** -(1 - norm))
    assert_powers(powers_of(inverse(gamma), losses), gamma**norm)


@given(st.floats(0.1, 1), st.integers(1, 100), st.integers(1, 100))
def test_two_classes_get_one_and_the_strength(gamma, first, more):
    losses = torch.tensor([[first, first], [first + more, first + more]]) / 100
    assert_powers(powers_of(by_elbo(gamma), losses), [1, 1 / gamma])
    assert powers_of(by_elbo(gamma), losses)[0] == 1
    assert_powers(powers_of(by_elbo(gamma), losses.flip(0)), [1 / gamma, 1])


def test_shuffled_exponents_are_the_images_own_in_an_order_by_draw_and_number():
    own = powers_of(by_elbo(1 / 3))
    drawn = {
        (draw, number): powers_of(shuffled(1 / 3, draw), number=number)
        for draw in range(3)
        for number in range(30)
    }
    for (draw, number), powers in drawn.items():
        assert torch.equal(powers.sort().values, own.sort().values)
        assert torch.equal(powers, powers_of(shuffled(1 / 3, draw), number=number))
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert any(not torch.equal(drawn[first, n], drawn[second, n]) for n in range(30))
    # Each class has the highest exponent in a fair share of the scenes.
    highest = np.bincount([int(powers.argmax()) for powers in drawn.values()], minlength=3)
    assert highest.min() > 15


def test_every_order_of_the_exponents():
    powers = torch.tensor([1.0, 1.2, 1.9, 3.0])
    orders = every_order(powers)
    assert orders.shape == (24, 4)
    assert torch.equal(orders[0], powers)
    assert len({tuple(row) for row in orders.tolist()}) == 24
    assert all(sorted(row) == powers.tolist() for row in orders.tolist())
    assert torch.equal(every_order(powers[:1]), powers[None, :1])


# ---- plans ----


@pytest.mark.parametrize("parts", [("main",), ("gamma",), ("sweeps",), ("main", "gamma", "sweeps")])
def test_parts_choose_variants_whose_needs_are_measured(parts):
    planned = plan("sd", OWN, parts)
    assert {variant.part for variant in planned.variants} == set(parts)
    names = [variant.name for variant in planned.variants]
    assert len(set(names)) == len(names)
    for config in (*planned.collecting.values(), *planned.scoring.values()):
        assert config == config.resolved("sd", OWN)
    steps = dict.fromkeys(planned.scoring, STEPS)
    subject, _ = of_losses(THREE)
    measured = Measured({}, dict.fromkeys(planned.scoring, THREE), steps)
    for variant in planned.variants:
        assert variant.maps in planned.collecting, variant.name
        powers = variant.exponents(subject, measured)
        assert powers.shape == (3,)
        assert (powers > 0).all()
    needed = {variant.maps for variant in planned.variants} | {"own"}
    assert set(planned.collecting) == needed  # nothing is collected in vain


def test_the_parts_hold_what_their_tables_show():
    by_part = {part: {v.name for v in plan("sd", OWN, (part,)).variants} for part in PARTS[:3]}
    assert by_part["main"] >= {"uncalibrated", "default", "default-3", "paper", "official"}
    assert by_part["main"] >= {f"constant-{c:g}" for c in CONSTANTS}
    for label in ("", "-3"):
        controls = {f"random{label}:{draw}" for draw in range(RANDOM_DRAWS)}
        assert by_part["main"] >= controls | {f"reversed{label}", f"inverse{label}"}
    assert by_part["gamma"] >= {"gamma-1", "gamma-3", "centred-1.5"}
    assert by_part["sweeps"] >= {"steps-1", "strategy-random", "collect-0-1:calibrated"}
    planned = plan("sd", OWN, ("sweeps",))
    assert {len(c.elbo_timesteps or ()) or c.elbo_steps for c in planned.scoring.values()} == {
        1, 5, 10, 20, 30, 40,
    }  # fmt: skip
    assert planned.collecting["0.4-0.6"].collect_range == (0.4, 0.6)


def test_the_default_is_the_models_own():
    found = {v.name: v.exponents for v in plan("sd", OWN, ("main",)).variants}
    assert_powers(powers_of(found["default"]), powers_of(by_elbo(2 / 3, centred=True)))
    turned = by_elbo(2 / 3, turned=True, centred=True)
    assert_powers(powers_of(found["reversed"]), powers_of(turned))
    assert_powers(powers_of(found["inverse"]), 1 / powers_of(found["default"]))
    plain = {v.name: v.exponents for v in plan("sd", {}, ("main",)).variants}
    for name in ("default", "default-3"):
        assert_powers(powers_of(plain[name]), powers_of(by_elbo(1 / 3)))
    for name in ("default-3", "reversed-3", "inverse-3", "random-3:0", "paper", "constant-2"):
        assert torch.equal(powers_of(found[name]), powers_of(plain[name])), name


def test_an_unknown_part_is_refused(aligner):
    with pytest.raises(ValueError, match="a part is 'mian'; allowed: 'main', 'gamma', 'sweeps'"):
        study(aligner, "val", 3, parts=["main", "mian"])


# ---- runs that stop and go on ----


@pytest.fixture
def small(few_steps, monkeypatch):
    """Two variants, scene by scene; the numbers of the scenes that were measured."""
    planned = plan("sd", model_settings(EMBEDDED), ("main",))
    few = Plan(
        tuple(variant for variant in planned.variants if variant.name in AUTOMATIC),
        {"own": planned.collecting["own"]},
        {"20": planned.scoring["20"]},
    )
    monkeypatch.setattr(studying, "plan", lambda *_: few)
    monkeypatch.setattr(studying, "_CHUNK", 1)
    log = SimpleNamespace(numbers=[], stop_at=None)

    def counted(backbone, group, *rest):
        if len(log.numbers) == log.stop_at:
            raise KeyboardInterrupt
        log.numbers += [subject.number for subject in group]
        return measure(backbone, group, *rest)

    monkeypatch.setattr(trying, "measure", counted)
    return log


def same_outcomes(first, second):
    assert set(first.tallies) == set(second.tallies)
    for name in first.tallies:
        same_rows(first.tally(name), second.tally(name))
    assert first.pairs == second.pairs
    assert first.automatic == second.automatic


def test_a_stopped_run_goes_on_where_it_was(aligner, small, ran, tmp_path, monkeypatch):
    monkeypatch.setattr(studying, "_SAVE_SECONDS", 0)
    keep = tmp_path / "study.partial"
    run = partial(studying.run, aligner, "test", parts=("main",), keep=keep, show=False)
    small.stop_at = 1
    with pytest.raises(KeyboardInterrupt):
        run(3)
    assert keep.is_file()
    with pytest.raises(ValueError, match=r"study\.partial' holds scenes of a study with other"):
        run(4)
    assert small.numbers == [0]
    small.stop_at = None
    resumed = run(3)
    assert small.numbers == [0, 1, 2]
    same_outcomes(run(3), resumed)  # all is done: nothing is measured
    assert small.numbers == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [keep.name]

    whole = studying.run(aligner, "test", 3, ("main",), show=False)
    same_outcomes(resumed, whole)
    assert resumed.tally("default").image.unique().tolist() == [0, 1, 2]
    for name in AUTOMATIC:  # three scenes at once give the same, to a pixel on a threshold
        same_rows(whole.tally(name), ran.tally(name), pixels=2)


def test_an_outcome_is_kept_whole(tmp_path):
    path, outcome = tmp_path / "some.partial", made_up(4)
    outcome.save(path, "key")
    loaded = Outcome.load(path, "key")
    same_outcomes(loaded, outcome)
    with pytest.raises(ValueError, match=r"some\.partial' holds scenes .* other settings"):
        Outcome.load(path, "another key")
    nothing = Outcome.load(tmp_path / "none.partial", "key")
    assert (nothing.tallies, nothing.pairs, nothing.automatic) == ({}, [], {})


# ---- figures ----

_PLANNED = [variant.name for variant in plan("sd", OWN, ("main",)).variants]
MAIN = (*_PLANNED, "best-order", "best-order-3")
CLASSES = range(0, 96, 6)


def made_up(images, seed=0, alike=False, perfect=()):
    """Scenes of 2 and 3 classes on 8 x 8 pixels, with random heatmaps for every main variant.

    ``alike``: the first scene again and again; ``perfect`` variants find every pixel.
    """
    rng = np.random.default_rng(seed)
    outcome = Outcome(automatic={name: [] for name in AUTOMATIC})
    for image in range(images):
        if alike:
            rng = np.random.default_rng(seed)
        count = 2 + image % 2 * (not alike)
        labels = rng.choice(CLASSES, count, replace=False).tolist()
        truth = rng.integers(0, count + 1, (8, 8))
        truth.flat[: count + 1] = np.arange(count + 1)
        near = truth == np.arange(1, count + 1)[:, None, None]
        heatmaps = 0.7 * rng.random((len(MAIN), *near.shape)) + 0.3 * near
        for place, name in enumerate(MAIN):
            if name in perfect:
                heatmaps[place] = near
        numbers = [label + 1 for label in labels]
        found = tally(torch.from_numpy(heatmaps), torch.from_numpy(truth), numbers, image)
        for name, rows in zip(MAIN, found, strict=True):
            outcome.tallies.setdefault(name, []).append(rows)
        bounds = rng.random(count)
        outcome.pairs.append(
            {
                "labels": labels,
                "area": (near.sum((1, 2)) / 64).tolist(),
                "visible": rng.uniform(0.2, 1, count).tolist(),
                "elbo": bounds.tolist(),
                "norm": strength(torch.from_numpy(bounds)).tolist(),
                "activation": rng.uniform(1, 9, count).tolist(),
                "target": None,
            }
        )
        for name, chosen in outcome.automatic.items():
            chosen.append(29 if name == "default" else int(rng.integers(20, 60)))
    return outcome


def points(outcome, name):
    """mIoU in percent at every threshold."""
    return 100 * curve(outcome.tally(name)).miou[0]


@pytest.fixture(scope="module")
def outcome():
    return made_up(14)


@pytest.fixture(scope="module")
def summary(outcome):
    return summarise(outcome, OWN, None, 60)


def test_a_summary_is_json(outcome, summary):
    again = json.loads(json.dumps(summary, allow_nan=False))
    assert again == summary
    assert summary["images"] == 14
    assert summary["pairs"] == 7 * 2 + 7 * 3
    grouped = {name.partition(":")[0] for name in MAIN}
    assert set(summary["variants"]) == grouped
    lines = table({"split": "val", **summary}).splitlines()
    assert lines[0].startswith("14 scenes of val")
    assert {line.split()[0] for line in lines[2:]} == grouped
    by_classes = summary["by_classes"]
    assert {count: part["images"] for count, part in by_classes.items()} == {"2": 7, "3": 7}
    pairs = outcome.tally("paper").of_images(torch.arange(14) % 2 == 0)
    assert by_classes["2"]["variants"]["paper"]["miou"] == pytest.approx(
        100 * float(curve(pairs).miou.max()), abs=1e-3
    )


def test_differences_are_paired(outcome, summary):
    weights = bootstrap_weights(14, 60)

    def best(name):
        return 100 * curve(outcome.tally(name), weights).miou.amax(1)

    bases = ("uncalibrated", summary["best_constant"])
    for base in bases:
        for name in ("default", "reversed", "best-order", "constant-2"):
            found = summary["variants"][name]["oracle"][f"minus_{base}"]
            point = points(outcome, name).max() - points(outcome, base).max()
            assert found["value"] == pytest.approx(float(point), abs=2e-3)
            ends = interval(best(name) - best(base))
            assert (found["low"], found["high"]) == pytest.approx(ends, abs=1e-3)
    zero = summary["variants"]["uncalibrated"]["fixed"]["minus_uncalibrated"]
    assert zero == {"value": 0, "low": 0, "high": 0}


def test_a_constant_difference_has_no_width():
    outcome = made_up(5, alike=True)
    found = summarise(outcome, OWN, None, 20)["variants"]
    for name, entry in found.items():
        for kind in ("oracle", "fixed"):
            difference = entry[kind]["minus_uncalibrated"]
            plain = found["uncalibrated"][kind]["miou"]
            assert difference["value"] == pytest.approx(entry[kind]["miou"] - plain, abs=1e-6)
            for end in ("low", "high"):
                assert difference[end] == pytest.approx(difference["value"], abs=1.1e-3), name
    assert found["default"]["oracle"]["minus_uncalibrated"]["value"] != 0


def test_the_best_constant():
    best = "constant-3"
    found = summarise(made_up(4, perfect=(best, "best-order")), OWN, None, 5)
    assert found["best_constant"] == best
    assert found["variants"][best]["oracle"]["miou"] == 100
    assert found["variants"]["best-order"]["oracle"][f"minus_{best}"]["value"] == 0
    assert found["variants"]["default"]["oracle"][f"minus_{best}"]["high"] < 0


@pytest.mark.parametrize("name", ["random", "random-3"])
def test_random_figures_are_the_mean_over_draws(outcome, summary, name):
    draws = [points(outcome, f"{name}:{draw}") for draw in range(RANDOM_DRAWS)]
    found = summary["variants"][name]
    best = [float(values.max()) for values in draws]
    assert found["oracle"]["miou"] == pytest.approx(np.mean(best), abs=1e-3)
    assert max(best) - min(best) > 0.1
    at = [THRESHOLDS[int(values.argmax())] for values in draws]
    assert found["oracle"]["threshold"] == pytest.approx(np.mean(at), abs=1e-3)
    fixed = [float(values[threshold_index(0.46)]) for values in draws]
    assert found["fixed"]["miou"] == pytest.approx(np.mean(fixed), abs=1e-3)
    weights = bootstrap_weights(14, 60)
    values = torch.stack(
        [
            curve(outcome.tally(f"{name}:{draw}"), weights).miou.amax(1)
            for draw in range(RANDOM_DRAWS)
        ]
    )
    ends = found["oracle"]["miou_low"], found["oracle"]["miou_high"]
    assert ends == pytest.approx(interval(100 * values.mean(0)), abs=1e-3)


def test_fixed_thresholds_are_the_references_else_the_models_own(outcome, summary):
    own = {name: entry["fixed"]["threshold"] for name, entry in summary["variants"].items()}
    assert own.pop("uncalibrated") == 0.45
    assert set(own.values()) == {0.46}
    best = {name: summary["variants"][name]["oracle"] for name in ("uncalibrated", "reversed")}
    known = {"random": {"threshold": 0.374}, "paper": {"threshold": 0.52}, **best}
    reference = {"variants": {name: {"oracle": oracle} for name, oracle in known.items()}}
    found = summarise(outcome, OWN, reference, 5)["variants"]
    for name, threshold in {"paper": 0.52, "random": 0.37, "default": 0.46}.items():
        assert found[name]["fixed"]["threshold"] == pytest.approx(threshold)
        members = [name] if name != "random" else [f"random:{d}" for d in range(RANDOM_DRAWS)]
        at = threshold_index(threshold)
        mean = np.mean([float(points(outcome, member)[at]) for member in members])
        assert found[name]["fixed"]["miou"] == pytest.approx(mean, abs=1e-3)
    for name, oracle in best.items():  # on the scenes where it was chosen, it is the oracle
        assert found[name]["fixed"]["threshold"] == oracle["threshold"]
        assert found[name]["fixed"]["miou"] == oracle["miou"]


def test_groups_hold_every_pair_once(outcome, summary):
    groups = summary["groups"]
    assert {kind: len(rows) for kind, rows in groups.items()} == {
        "frequency": 3, "area": 10, "visible": 4,
    }  # fmt: skip
    for rows in groups.values():
        assert sum(row["pairs"] for row in rows) == summary["pairs"]
    rows = outcome.tally("default")
    visible = torch.tensor([v for pair in outcome.pairs for v in (-1.0, *pair["visible"])])
    at = threshold_index(0.46)
    for row, (low, high) in zip(groups["visible"], pairwise((0, 0.5, 0.75, 0.95, 1)), strict=True):
        here = rows.select((visible > low) & (visible <= high))
        assert row["pairs"] == len(here.label)
        hits, claimed = int(here.hits[:, at].sum()), int(here.claimed[:, at].sum())
        pooled = 100 * hits / (claimed + int(here.true.sum()) - hits)
        assert row["default"]["iou"] == pytest.approx(pooled, abs=1e-3)
    thirds = frequency_thirds()
    for third, row in enumerate(groups["frequency"]):
        chosen = torch.tensor([n > 0 and int(thirds[n - 1]) == third for n in rows.label.tolist()])
        ious = class_ious(rows.select(chosen), 0.46)
        assert row["default"]["iou"] == pytest.approx(
            100 * float(np.mean(list(ious.values()))), abs=1e-3
        )
        difference = row["default"]["iou"] - row["uncalibrated"]["iou"]
        found = row["default"]["minus_uncalibrated"]
        assert found["value"] == pytest.approx(difference, abs=2e-3)
        assert found["low"] <= found["high"]


def test_rules_for_the_threshold(outcome, summary):
    found, values = summary["thresholds"]["default"], points(outcome, "default")
    assert found["oracle"]["miou"] == pytest.approx(float(values.max()), abs=1e-3)
    # Otsu's threshold is index 29 in every image, the fixed one 45.
    for rule, at in {"fixed": 45, "otsu": 29, "mean of both": 37}.items():
        assert found[rule]["threshold"] == pytest.approx(THRESHOLDS[at])
        assert found[rule]["miou"] == pytest.approx(float(values[at]), abs=1e-3)
        assert found[rule]["minus_oracle"]["high"] <= 0
    chosen, rows = outcome.automatic["uncalibrated"], outcome.tally("uncalibrated")
    each = [int(rows.hits[row, chosen[image]]) for row, image in enumerate(rows.image.tolist())]
    claimed = [int(rows.claimed[row, chosen[i]]) for row, i in enumerate(rows.image.tolist())]
    ious = []
    for label in rows.label.unique().tolist():
        here = [row for row, other in enumerate(rows.label.tolist()) if other == label]
        hits, guessed = sum(each[row] for row in here), sum(claimed[row] for row in here)
        ious.append(hits / (guessed + int(rows.true[here].sum()) - hits))
    assert summary["thresholds"]["uncalibrated"]["otsu"]["miou"] == pytest.approx(
        100 * np.mean(ious), abs=1e-3
    )


def test_which_class_is_the_weak_one(outcome, summary):
    smallest = [
        pair["elbo"].index(max(pair["elbo"])) == pair["area"].index(min(pair["area"]))
        for pair in outcome.pairs
    ]
    assert summary["order"]["smallest"] == pytest.approx(100 * np.mean(smallest), abs=0.01)
    assert summary["order"]["chance"] == pytest.approx(100 * (1 / 2 + 1 / 3) / 2, abs=0.01)
    for pair in (changed := made_up(6)).pairs:
        pair["visible"] = [1 - bound / 2 for bound in pair["elbo"]]
    assert summarise(changed, OWN, None, 5)["order"]["most hidden"] == 100


# ---- stress ----


def test_stress_runs_each_dial_and_level(aligner, few_steps, monkeypatch):
    monkeypatch.setattr(studying, "DIALS", ("occlusion",))
    monkeypatch.setattr(studying, "STRESS_LEVELS", (0.5,))
    base, occluded = describe_stress(studying.run_stress(aligner, 2, show=False), 20)
    json.dumps([base, occluded], allow_nan=False)
    assert [(row["dial"], row["level"]) for row in (base, occluded)] == [
        ("occlusion", 0.0), ("occlusion", 0.5),
    ]  # fmt: skip
    assert base["images"] == 2
    assert base["visible"] == 1
    assert 0 < occluded["visible"] < 1
    assert base["uncalibrated"]["target"]["value"] > 40
    lines = table({"split": "test", "stress": [base, occluded]}).splitlines()
    assert lines[-1].startswith("stress occlusion  0.50 target IoU: uncalibrated")


# ---- rank correlations ----


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * 4 / (5 * 24)
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),  # ranks 1, 2.5, 2.5, 4
        ([1, 1, 2, 2], [1, 2, 1, 2], 0),
        ([3, 3, 3], [1, 2, 3], 0),
        ([1, 2, 3], [0, 0, 0], 0),
        ([5], [7], 0),
    ],
)
def test_spearman_by_hand(a, b, expected):
    assert spearman(np.array(a), np.array(b)) == pytest.approx(expected)
    assert spearman(np.array(b), np.array(a)) == pytest.approx(expected)


pairs_of_values = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        *[hnp.arrays(np.float64, count, elements=st.integers(0, 6).map(float)) for _ in range(2)]
    )
)


def plain_ranks(values):
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


@given(pairs_of_values)
def test_spearman_is_the_correlation_of_ranks(values):
    a, b = values
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert spearman(a, b) == 0
        return
    expected = np.corrcoef(plain_ranks(a), plain_ranks(b))[0, 1]
    assert spearman(a, b) == pytest.approx(expected, abs=1e-12)
    assert spearman(np.exp(a), b**3) == pytest.approx(expected, abs=1e-12)
    assert spearman(a, -b) == pytest.approx(-expected, abs=1e-12)


def test_spearman_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 9, (2, 30)).astype(float)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_correlations_are_within_images():
    outcome, rng = made_up(10), np.random.default_rng(1)
    for pair in outcome.pairs:
        # Between images the ELBO rises with area: only what happens inside one counts.
        offset = 100 * float(np.mean(np.log(pair["area"]))) + rng.normal()
        pair["elbo"] = [offset - float(np.log(area)) for area in pair["area"]]
        pair["visible"] = [1.0] * len(pair["labels"])
        pair["activation"] = [float(np.exp(bound - offset)) for bound in pair["elbo"]]
    found = correlations(outcome, 20)
    assert found["elbo~area"] == {"value": -1, "low": -1, "high": -1}
    assert found["elbo~activation"] == {"value": 1, "low": 1, "high": 1}
    assert found["elbo~visible"] == {"value": 0, "low": 0, "high": 0}
    # Random maps know nothing of the loss.
    assert -1 < found["elbo~iou"]["low"] < found["elbo~iou"]["high"] < 1
    perfect = correlations(made_up(10, perfect=("uncalibrated",)), 5)
    assert perfect["iou~area"]["value"] == 0


# ---- Otsu's threshold ----


def between(values, threshold):
    """The variance between the classes below and above."""
    low, high = values[values < threshold], values[values >= threshold]
    if not len(low) or not len(high):
        return 0.0
    return len(low) * len(high) * (low.mean() - high.mean()) ** 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", ["uniform", "skewed", "two"])
def test_otsu_maximises_the_variance_between_classes(shape, seed):
    rng = np.random.default_rng(seed)
    peaks = np.where(rng.random(400) < 0.2, 0.8, 0.3) + 0.1 * rng.normal(size=400)
    drawn = {
        "uniform": rng.random(400),
        "skewed": rng.random(400) ** 4,
        "two": peaks.clip(0, 1),
    }[shape]
    values = np.round(drawn * 255) / 255
    cuts = (np.arange(255) + 0.5) / 255
    scores = np.array([between(values, cut) for cut in cuts])
    best = cuts[scores >= scores.max() * (1 - 1e-9)]
    found = otsu(torch.from_numpy(values).float())
    assert best.min() - 1 / 255 <= found <= best.max() + 1 / 255
    assert between(values, found) == pytest.approx(scores.max())
    assert abs(otsu(torch.from_numpy(drawn).float()) - found) <= 1 / 255
    mixed = torch.from_numpy(rng.permutation(values)).float()
    assert otsu(mixed) == found
    assert otsu(mixed.reshape(20, 20)) == found


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.9), (0.0, 0.3), (0.7, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_otsu_splits_two_clusters_in_the_middle_of_the_gap(low, high, share):
    noise = 0.02 * (np.random.default_rng(0).random(1000) - 0.5)
    above = np.arange(1000) < 1000 * share
    values = np.clip(np.where(above, high, low) + noise, 0, 1)
    found = otsu(torch.from_numpy(values).float())
    assert ((values >= found) == above).all()
    assert found == pytest.approx((low + high) / 2, abs=0.02)


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_otsu_of_a_constant_is_one_half(value):
    assert otsu(torch.full((5, 5), value)) == 0.5


# ---- enlarging ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(32, 48), (7, 5), (6, 8)])
def test_enlarging_all_at_once_is_enlarging_each(dtype, size):
    maps = torch.rand(4, 6, 8, generator=torch.Generator().manual_seed(0), dtype=dtype) * 3 + 2
    maps[2] = 0.7
    found = enlarge(maps, size)
    assert torch.equal(found, to_image(maps, size))
    assert found.shape == (4, *size)
    assert found.dtype == torch.float32
    assert found.amax((1, 2)).tolist() == [1, 1, 0, 1]


# ---- choosing ----


def test_chosen_settings_hold_on_their_scenes(aligner, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "AlignConfig", partial(AlignConfig, **FEW))
    monkeypatch.setattr(choosing, "RANGES", ((0.0, 0.1), (0.0, 0.2)))
    monkeypatch.setattr(choosing, "WEIGHTS", (0.0, 1.0))
    monkeypatch.setattr(choosing, "GAMMAS", (1.5, 3.0))
    monkeypatch.setattr(choosing, "_ROUNDS", 1)
    found = choosing.choose(aligner, 3, show=False)
    json.dumps(found, allow_nan=False)
    assert found["scenes"] == 3

    path = choosing.write_settings(found["settings"], tmp_path)
    assert path == tmp_path / "pixalign.json"
    settings = model_settings(tmp_path)
    assert settings == found["settings"]
    chosen = pa.Aligner(aligner.backbone, own=settings)
    group = labelled_scenes(draw_scenes("val", 3), 128, "cpu")
    encoded = [chosen.encode(picture_of(subject)) for subject in group]

    def values(config):
        """mIoU in percent at every threshold, through the front door."""
        rows = [
            alone(aligned(chosen, encoded[image], subject, config).heatmaps, subject, image)
            for image, subject in enumerate(group)
        ]
        return 100 * curve(Tally.concatenate(rows)).miou[0]

    uniform = values(preset("uncalibrated", cross_weights="uniform", collect_range=(0, 0.2)))
    plain, calibrated = values(preset("uncalibrated")), values(preset("default"))
    assert found["tried"][0]["miou"] == pytest.approx(float(uniform.max()), abs=0.02)
    at = threshold_index(settings["uncalibrated_threshold"])
    assert found["uncalibrated"] == pytest.approx(float(plain[at]), abs=0.02)
    at = threshold_index(settings["threshold"])
    assert found["calibrated"] == pytest.approx(float(calibrated[at]), abs=0.02)
    assert plain.max() >= uniform.max()
    tried = [step["miou"] for step in found["tried"]]
    assert tried == sorted(tried)
    assert found["uncalibrated"] == max(found["ranges"].values()) >= tried[-1]
    assert found["calibrated"] == max(*found["gammas"].values(), *found["centred"].values())


# ---- the embedded model ----


def test_single_objects_are_found(aligner):
    group = labelled_scenes(sample_scenes("test", 0, 40, objects=1), 128, "cpu")
    found = aligner.align(
        [picture_of(subject) for subject in group],
        [subject.names for subject in group],
        config=AlignConfig.uncalibrated(collect_steps=2),
    )
    inside, ious = [], []
    for subject, result in zip(group, found, strict=True):
        truth = subject.truth.numpy() == 1
        inside.append(truth.flat[result.heatmaps[0].argmax()])
        mask = result.mask() == 1
        ious.append((mask & truth).sum() / (mask | truth).sum())
    assert np.mean(inside) >= 0.9
    assert np.mean(ious) >= 0.6


# ---- the command ----


@pytest.fixture
def command(monkeypatch, capsys, summary):
    """Run `pixalign lab study`, its work replaced: (exit code, stdout, what it was asked)."""
    asked = {}

    def stub(model, split, count, **options):
        asked.update(model=model, split=split, count=count, **options)
        if "keep" in options:
            options["keep"].write_bytes(b"some scenes")
        return {"split": split, **summary}

    def command(*arguments):
        monkeypatch.setattr(studying, "study_of", stub)
        monkeypatch.setattr(sys, "argv", ["pixalign", "lab", "study", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr().out, asked

    return command


def test_the_command_writes_and_prints_the_result(command, summary, tmp_path):
    out, known = tmp_path / "study.json", tmp_path / "val.json"
    code, printed, asked = command(
        "--limit", 3, "--parts", "main,gamma", "--split", "val", "--thresholds", known,
        "--model", tmp_path, "--device", "cpu", "--out", out, "--json",
    )  # fmt: skip
    assert code == 0
    assert asked == {
        "model": tmp_path,
        "split": "val",
        "count": 3,
        "device": "cpu",
        "reference": known,
        "parts": ["main", "gamma"],
        "stress_scenes": 1,
        "keep": tmp_path / "study.json.partial",
    }
    assert json.loads(printed) == json.loads(out.read_text()) == {"split": "val", **summary}
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]  # no partial one


def test_the_command_prints_a_table(command, summary):
    code, printed, asked = command()
    assert code == 0
    assert printed.strip() == table({"split": "test", **summary})
    assert (asked["split"], asked["count"], asked["stress_scenes"]) == ("test", 1200, 60)
    assert asked["parts"] == list(PARTS)
    assert asked["model"] is asked["reference"] is None
    assert "keep" not in asked


# ---- few scenes ----


@pytest.mark.parametrize("images", [2, 3, 12])
def test_a_small_study_is_json_too(images):
    """In some resamples a number of classes does not occur; that is null, not NaN."""
    result = summarise(made_up(images), OWN, None, 200)
    assert json.loads(json.dumps(result, allow_nan=False))["images"] == images


def test_otsu_does_not_mix_two_maxima():
    values = torch.tensor([0.0] + [100.0] * 3 + [102.0] * 3 + [202.0]) / 255
    assert not 100 / 255 < otsu(values) < 102 / 255
