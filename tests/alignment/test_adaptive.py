"""When the ELBO has been asked often enough: stages, the stopping rule, and images that leave."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pixalign as pa
import tiny
from helpers import LONG, assert_close, batches, model_of, pictures, same
from pixalign.alignment.adaptive import DRAWS, expected_change, stages
from pixalign.core.values import TextCondition

STAGED = {"elbo_steps": 12, "elbo_stage": 3, "collect_steps": 1}
EACH = [["dog", "cat"], ["car", "tree", "zebra"], ["hot dog", "dog"]]


# ---- stages ----

counts, sizes = st.integers(1, 300), st.integers(1, 60)


def test_stages_by_hand():
    assert stages(20, 5) == [
        [2, 6, 10, 14, 18],
        [0, 4, 8, 12, 16],
        [3, 7, 11, 15, 19],
        [1, 5, 9, 13, 17],
    ]
    assert stages(7, 3) == [[1, 3, 5], [0, 2, 4, 6]]
    assert stages(3, 5) == [[0, 1, 2]]


@given(counts, sizes)
def test_stages_visit_every_timestep_once(count, size):
    plan = stages(count, size)
    assert all(plan)
    assert sorted(index for stage in plan for index in stage) == list(range(count))


@given(counts, sizes)
def test_stages_are_about_as_large_as_asked(count, size):
    held = [len(stage) for stage in stages(count, size)]
    assert max(held) - min(held) <= 1
    if size <= count:
        assert int(2 / 3 * size) <= min(held)
        assert max(held) <= 1.5 * size + 1
    else:
        assert held == [count]


@given(counts, sizes)
def test_each_stage_spreads_over_the_whole_range(count, size):
    plan = stages(count, size)
    stride = len(plan)
    for stage in plan:
        gaps = np.diff([-1, *stage, count])
        assert (gaps[1:-1] == stride).all()
        assert gaps.max() <= stride  # at the ends too
    first = plan[0]
    assert first[0] == stride // 2
    if stride > 1:
        assert not any(index + 1 in first for index in first)


@given(st.sampled_from([2, 4, 8, 16]), st.integers(2, 9))
def test_stages_halve_the_widest_gaps(stride, size):
    plan = stages(stride * size, size)
    assert len(plan) == stride
    for done in (1, 2, 4, 8, 16):
        if done <= stride:
            seen = sorted(index for stage in plan[:done] for index in stage)
            assert set(np.diff(seen)) == {stride // done}


# ---- expected_change ----


def some_losses(classes, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(classes, count, generator=generator, dtype=torch.float64)
    weights = 0.2 + torch.rand(count, generator=generator, dtype=torch.float64)
    return losses, weights


def by_hand(losses, weights, gamma, centred):
    """The same resamples, one at a time, class by class, in NumPy's float64."""
    losses, weights = losses.numpy(), weights.numpy()
    classes, count = losses.shape

    def powers(pick):
        total = sum(weights[j] for j in pick)
        elbo = [sum(weights[j] * losses[i, j] for j in pick) / total for i in range(classes)]
        low, high = min(elbo), max(elbo)
        found = [(1 / gamma) ** ((value - low) / (high - low)) for value in elbo]
        if centred:
            found = [power / np.prod(found) ** (1 / classes) for power in found]
        return found

    drawn = torch.randint(count, (DRAWS, count), generator=torch.Generator().manual_seed(0))
    now, total = powers(range(count)), 0.0
    for pick in drawn.tolist():
        total += sum(abs(a - b) for a, b in zip(powers(pick), now, strict=True)) / classes
    return total / DRAWS / (1 / gamma - 1)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("classes", "count", "gamma"), [(2, 5, 1 / 3), (4, 7, 0.6), (3, 12, 0.1)])
def test_expected_change_equals_a_plain_loop(classes, count, gamma, centred):
    losses, weights = some_losses(classes, count, seed=3)
    found = expected_change(losses, weights, gamma, centred)
    assert found > 0.01
    # Scores are float32.
    assert found == pytest.approx(by_hand(losses, weights, gamma, centred), rel=2e-6)


def test_expected_change_repeats_and_leaves_randomness_alone():
    losses, weights = some_losses(3, 6)
    before = torch.random.get_rng_state()
    first, again = (expected_change(losses, weights, 1 / 3, False) for _ in range(2))
    assert first == again > 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_weights_count_in_expected_change():
    """By their proportions."""
    losses, weights = some_losses(3, 6)
    found, scaled, plain = (
        expected_change(losses, w, 1 / 3, False) for w in (weights, 7 * weights, torch.ones(6))
    )
    assert scaled == pytest.approx(found, abs=1e-5)
    assert abs(plain - found) > 1e-3


@pytest.mark.parametrize("centred", [False, True])
def test_nothing_to_decide_changes_nothing(centred):
    losses, weights = some_losses(3, 8)
    assert expected_change(losses[:1], weights, 1 / 3, centred) == 0
    assert expected_change(losses, weights, 1.0, centred) == 0


@pytest.mark.parametrize("centred", [False, True])
def test_a_constant_difference_is_certain(centred):
    losses, weights = some_losses(1, 8)
    two = losses + torch.tensor([[0.0], [0.1]])
    assert expected_change(two, weights, 1 / 3, centred) == 0
    three = losses + torch.tensor([[0.0], [0.1], [0.04]])
    assert expected_change(three, weights, 1 / 3, centred) < 1e-6


@pytest.mark.parametrize("classes", [2, 3])
def test_tied_classes_are_uncertain_and_distinct_ones_are_not(classes):
    apart = torch.arange(classes, dtype=torch.float64)[:, None]
    tied, distinct = [], []
    for seed in range(20):
        losses, _ = some_losses(classes, 20, seed)
        tied.append(expected_change(losses, torch.ones(20), 1 / 3, False))
        distinct.append(expected_change(losses + apart, torch.ones(20), 1 / 3, False))
    assert np.mean(tied) > 0.2
    assert np.mean(distinct) < 0.05


def test_more_timesteps_leave_less_to_expect():
    """In the mean over many draws; a single one may rise."""

    def mean(count):
        apart = torch.tensor([[0.0], [0.15], [0.3]])
        found = [
            expected_change(some_losses(3, count, seed)[0] + apart, torch.ones(count), 1 / 3, False)
            for seed in range(12)
        ]
        return np.mean(found)

    few, some, many = mean(4), mean(16), mean(64)
    assert few > 1.1 * some
    assert some > 1.5 * many > 0


losses_seeds = st.tuples(st.integers(2, 5), st.integers(2, 12), st.integers(0, 10_000))


@settings(max_examples=20)
@given(losses_seeds, st.floats(0.01, 100), st.floats(0, 5), st.booleans())
def test_shared_noise_and_scale_do_not_count(shape, scale, noise, centred):
    """What all classes share at a timestep says nothing about their order."""
    losses, weights = some_losses(*shape)
    shared = noise * some_losses(1, shape[1], seed=shape[2] + 1)[0]
    found = expected_change(losses, weights, 1 / 3, centred)
    moved = expected_change(scale * (losses + shared), weights, 1 / 3, centred)
    assert moved == pytest.approx(found, abs=1e-4)
    assert 0 <= found <= 1


def test_noise_of_its_own_does_count():
    losses = some_losses(1, 10)[0] + torch.tensor([[0.0], [0.1]])
    own = some_losses(2, 10, seed=5)[0]
    assert expected_change(losses + own, torch.ones(10), 1 / 3, False) > 0.1


# ---- images that leave ----


def staged(**changes):
    return pa.AlignConfig(**STAGED | changes)


def visited(result):
    return len(result.provenance["timesteps"]["elbo"])


def rows_seen(backbone, monkeypatch):
    """How many rows go through the network, as a list that grows."""
    seen, predict = [], backbone.predict

    def spy(z, *rest, **options):
        seen.append(len(z))
        return predict(z, *rest, **options)

    monkeypatch.setattr(backbone, "predict", spy)
    return seen


def three_pictures():
    return pictures((40, 30), (30, 50), (64, 64))


def test_tolerance_zero_is_the_full_budget(wide):
    """Bit by bit, and in the order of the schedule."""
    aligner = model_of(wide("sd1"))
    full, zero = (
        aligner.align(
            tiny.photo(40, 30),
            EACH[1],
            config=staged(elbo_weighting="likelihood", elbo_tolerance=tolerance),
        )
        for tolerance in (None, 0)
    )
    assert visited(zero) == 12
    assert same(full, zero)
    assert np.array_equal(full.elbo, zero.elbo)
    assert full.provenance["timesteps"] == zero.provenance["timesteps"]
    assert full.provenance["forwards"] == zero.provenance["forwards"]


def test_tolerance_zero_is_the_full_budget_even_where_nothing_changes(wide):
    """A change of 0 is not less than a tolerance of 0."""
    aligner = model_of(wide("sd3"), config=staged(elbo_tolerance=0))
    assert visited(aligner.align(three_pictures()[2], EACH[2])) == 12


def test_stages_of_one_timestep_still_see_more_than_one(wide):
    aligner = model_of(wide("sd1"), config=staged(elbo_tolerance=1e-9, elbo_stage=1))
    assert visited(aligner.align(tiny.photo(50, 50), EACH[0])) > 1


def test_a_huge_tolerance_stops_after_the_first_stage(wide):
    aligner = model_of(wide("sd1"))
    images, each = three_pictures()[:2], EACH[:2]
    full = aligner.align(images, each, config=staged())
    quick = aligner.align(images, each, config=staged(elbo_tolerance=1e9))
    first = stages(12, 3)[0]
    for whole, part in zip(full, quick, strict=True):
        assert np.array_equal(part.losses, whole.losses[:, first])
        times = whole.provenance["timesteps"]["elbo"]
        assert part.provenance["timesteps"]["elbo"] == [times[i] for i in first]
        assert part.provenance["timesteps"]["collect"] == whole.provenance["timesteps"]["collect"]
        np.testing.assert_allclose(part.elbo, part.losses.mean(1), rtol=1e-6)


@pytest.mark.parametrize(("name", "tolerance"), [("sd1", 0.1), ("sd3", 0.01)])
def test_each_image_leaves_on_its_own(wide, name, tolerance):
    pipe = wide(name)
    config = staged(elbo_tolerance=tolerance)
    aligner = model_of(pipe, config=config, batch_size=1000)
    images = three_pictures()
    together, seen = batches(pipe, lambda: aligner.align(images, EACH))

    left = [visited(one) for one in together]
    assert len(set(left)) == 3
    for one, image, classes in zip(together, images, EACH, strict=True):
        alone = aligner.align(image, classes)
        assert_close(one, alone)
        assert np.array_equal(one.losses, alone.losses)
        assert one.provenance["forwards"] == alone.provenance["forwards"]
    # Those that stay go through the network together: one batch a stage.
    texts = [len(classes) for classes in EACH]
    open_texts = [
        sum(n for n, last in zip(texts, left, strict=True) if last > done)
        for done in range(0, 12, 3)
    ]
    assert seen == [3, *(3 * held for held in open_texts if held)]


def test_the_rule_is_asked_after_every_stage(wide):
    """With the settings in force, of all that was seen: a hair's breadth decides."""
    aligner, image = model_of(wide("sd1")), tiny.photo(40, 30)
    settings = {"elbo_weighting": "likelihood", "gamma": 0.5, "centred": True}
    full = aligner.align(image, EACH[1], config=staged(**settings))
    losses, weights = torch.from_numpy(full.losses), likelihood_weights(aligner, full)
    seen, changes, plan = [], [], stages(12, 3)
    for stage in plan:
        seen += stage
        changes.append(expected_change(losses[:, seen], weights[seen], 0.5, True))
    least = min(changes[:-1])
    done = changes.index(least) + 1
    assert least > 0
    seen = sorted(index for stage in plan[:done] for index in stage)

    below, above = (
        aligner.align(image, EACH[1], config=staged(elbo_tolerance=least * factor, **settings))
        for factor in (0.9999, 1.0001)
    )
    assert np.array_equal(above.losses, full.losses[:, seen])
    assert same(below, full)


def test_tied_classes_run_the_full_budget(wide, monkeypatch):
    """A model that does not read, and whose losses differ by chance alone."""
    aligner = model_of(wide("sd1"), config=staged(elbo_tolerance=0.05))
    backbone, generator = aligner.backbone, torch.Generator().manual_seed(0)
    encode_text, epsilon = backbone.encode_text, backbone.epsilon

    def blind(prompts):
        return TextCondition(encode_text(["a photo"]).embeds.expand(len(prompts), -1, -1))

    def noisy(z, *rest):
        return epsilon(z, *rest) + 0.3 * torch.randn(z.shape, generator=generator)

    classes = ["dog", "cat", "car", "tree"]
    monkeypatch.setattr(backbone, "encode_text", blind)
    exact = aligner.align(tiny.photo(40, 30), classes)
    assert (exact.losses == exact.losses[0]).all()  # blind indeed
    monkeypatch.setattr(backbone, "epsilon", noisy)
    assert visited(aligner.align(tiny.photo(40, 30), classes)) == 12


def test_forwards_are_the_rows_that_went_through_the_network(wide, monkeypatch):
    config = staged(elbo_tolerance=0.1, collect_steps=2)
    aligner = model_of(wide("sd1"), config=config, batch_size=5)
    seen = rows_seen(aligner.backbone, monkeypatch)
    shared = [pa.Phrase("dog", "animal"), "car", pa.Phrase("cat", "animal")]  # two texts
    results = aligner.align(three_pictures(), [EACH[0], LONG, shared])

    forwards = [one.provenance["forwards"] for one in results]
    assert sum(seen) == sum(f["collect"] + f["elbo"] for f in forwards)
    assert [f["collect"] for f in forwards] == [2, 4, 2]  # the long prompt is split
    texts = [2, 4, 2]
    assert [f["elbo"] for f in forwards] == [
        held * visited(one) for held, one in zip(texts, results, strict=True)
    ]
    assert sum(f["elbo"] for f in forwards) < 12 * sum(texts)
    maps = aligner.align(tiny.photo(40, 30), ["dog"], config=staged(method="attention"))
    assert maps.provenance["forwards"] == {"collect": 1, "elbo": 0}


def likelihood_weights(aligner, result):
    """-lambda'(t) by finite differences of the pipeline's own noise schedule."""
    signal = aligner.backbone.pipe.scheduler.alphas_cumprod.double().numpy()
    slope = np.gradient(np.log(signal / (1 - signal)), 1 / len(signal))
    return torch.from_numpy(-slope[np.array(result.provenance["timesteps"]["elbo"], int)])


def test_weights_of_the_visited_timesteps_sum_to_one(wide):
    config = staged(elbo_tolerance=0.1, elbo_weighting="likelihood", gamma=0.4)
    aligner = model_of(wide("sd1"), config=config)
    results = aligner.align(three_pictures(), EACH)
    assert min(map(visited, results)) < 12
    for result in results:
        weights = likelihood_weights(aligner, result).numpy()
        assert weights.max() > 1.4 * weights.min()
        elbo = (result.losses.astype(float) * weights).sum(1) / weights.sum()
        np.testing.assert_allclose(result.elbo, elbo, rtol=1e-5)
        norm = (elbo - elbo.min()) / (elbo.max() - elbo.min())
        np.testing.assert_allclose(result.scores, 0.4**norm, rtol=1e-3)


def test_given_timesteps_stay_in_the_order_given(wide):
    chosen = (900, 20, 500, 310, 700, 60)
    config = pa.AlignConfig(
        elbo_timesteps=chosen, elbo_stage=2, elbo_tolerance=1e9, collect_steps=1
    )
    aligner = model_of(wide("sd1"), config=config)
    found = aligner.align(tiny.photo(40, 30), ["dog", "cat"])
    assert found.provenance["timesteps"]["elbo"] == [chosen[i] for i in stages(6, 2)[0]]
    zero = aligner.align(
        tiny.photo(40, 30), EACH[1], config=dataclasses.replace(config, elbo_tolerance=0)
    )
    assert zero.provenance["timesteps"]["elbo"] == list(chosen)
