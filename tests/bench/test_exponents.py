"""Exponents and evidence of controls: by hand, as properties, and in a run."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_folder import dataset_of
from pixalign.bench import measuring
from pixalign.bench.exponents import DRAWS, EVIDENCE, EXPONENTS, evidence_by, exponents_by
from pixalign.bench.measuring import Bench
from pixalign.bench.metrics import nearest_threshold
from pixalign.bench.subject import Subject
from pixalign.core.values import Evidence

ELBO = torch.tensor([0.3, 0.5, 0.6])  # norm 0, 2/3, 1


def powers(rule, elbo=ELBO, gamma=1 / 3, centred=False, seed=0):
    return exponents_by(rule, elbo, gamma, centred, seed).double()


def test_exponents_by_hand():
    for rule, expected in {
        "elbo": [1, 3 ** (2 / 3), 3],
        "reversed": [3, 3 ** (1 / 3), 1],
        "inverted": [1, 3 ** (-2 / 3), 1 / 3],
    }.items():
        np.testing.assert_allclose(powers(rule), [expected], rtol=1e-5)
        centred = np.array(expected) / np.prod(expected) ** (1 / 3)
        np.testing.assert_allclose(powers(rule, centred=True), [centred], rtol=1e-5)


elbos = st.lists(st.integers(1, 10**4), min_size=1, max_size=5, unique=True).map(
    lambda levels: torch.tensor(levels, dtype=torch.float64) / 10**4
)


@given(elbos, st.floats(0.1, 0.9))
def test_controls_keep_the_strength(elbo, gamma):
    norm = (elbo - elbo.min()) / (elbo.max() - elbo.min()).clamp_min(1e-9)
    (own,) = powers("elbo", elbo, gamma)
    np.testing.assert_allclose(own, gamma**-norm, rtol=1e-5)
    np.testing.assert_allclose(powers("inverted", elbo, gamma)[0], gamma**norm, rtol=1e-5)
    if len(elbo) > 1:
        np.testing.assert_allclose(
            powers("reversed", elbo, gamma)[0], gamma ** -(1 - norm), rtol=1e-5
        )
    for rule in EXPONENTS:
        centred = powers(rule, elbo, gamma, centred=True)
        np.testing.assert_allclose(centred.log().mean(1), 0, atol=1e-5)
    for rule in ("shuffled", "best-order"):
        for drawn in powers(rule, elbo, gamma):
            assert torch.equal(drawn.sort().values, own.sort().values)


def test_shuffled_orders_go_by_the_seed_and_are_fair():
    drawn = torch.cat([powers("shuffled", seed=seed) for seed in range(30)])
    assert drawn.shape == (30 * DRAWS, 3)
    assert torch.equal(powers("shuffled", seed=4), powers("shuffled", seed=4))
    assert len({tuple(row) for row in powers("shuffled", seed=1).tolist()}) > 1
    assert np.bincount(drawn.argmax(1), minlength=3).min() > 25


def test_every_order_once_as_it_is_first():
    found = powers("best-order", torch.tensor([0.1, 0.2, 0.5, 0.6]))
    (own,) = powers("elbo", torch.tensor([0.1, 0.2, 0.5, 0.6])).tolist()
    assert found.tolist() == [list(order) for order in permutations(own)]
    with pytest.raises(ValueError, match="all orders of 7 classes; allowed: up to 6"):
        powers("best-order", torch.arange(7.0))


def test_a_run_measures_every_draw_and_keeps_the_best_order(model, spec_of, tmp_path):
    rows = "".join(
        f"  - {{name: {rule}, exponents: {rule}, set: {{elbo_steps: 3, collect_steps: 2}}}}\n"
        for rule in EXPONENTS
    )
    bench = Bench(spec_of(rows, before="default").rows, model)
    dataset = dataset_of(tmp_path, 4)
    subject = Subject(dataset[3], 3, dataset.classes, 7)
    (image,), _ = bench.measure([subject])
    counts = {name: len(drawn) for name, drawn in image.tallies.items()}
    assert counts == dict.fromkeys(counts, 1) | {"shuffled": DRAWS}
    assert len(image.elbo) == len(image.activation) == len(subject.labels) == 3
    at = nearest_threshold(bench.rows[1].config.threshold)

    def suits(tally):
        return float(tally.at(at).ious().mean())

    others = [*image.tallies["shuffled"], *image.tallies["elbo"], *image.tallies["reversed"]]
    assert suits(image.tallies["best-order"][0]) >= max(map(suits, others))
    shapes = {row.name: len(maps) for _, row, maps in bench.heatmaps([subject])}
    assert shapes == {**dict.fromkeys(counts, 1), "shuffled": DRAWS, "best-order": 6}


# ---- evidence ----


def test_evidence_by_hand():
    projection = torch.arange(2 * 2 * 4.0).reshape(2, 2, 4)
    evidence = Evidence(projection, projection + 100)
    assert set(EVIDENCE) == {"own", "exchanged", "shifted", "own-noise"}
    for rule, expected in {
        "own": projection.tolist(),
        "exchanged": [projection[1].tolist(), projection[0].tolist()],
        "shifted": [
            [[6, 7, 4, 5], [2, 3, 0, 1]],
            [[14, 15, 12, 13], [10, 11, 8, 9]],
        ],
    }.items():
        found = evidence_by(rule, evidence)
        assert found.projection.tolist() == expected
        assert torch.equal(found.energy, found.projection + 100)
    three = torch.arange(3.0).reshape(3, 1, 1)
    exchanged = evidence_by("exchanged", Evidence(three, three))
    assert sorted(exchanged.energy.ravel().tolist()) == [0, 1, 2]
    assert (exchanged.energy != three).all()  # nobody keeps its own


@given(st.sampled_from(["own", "exchanged", "shifted"]), st.integers(1, 4), st.integers(1, 5))
def test_controls_keep_the_evidence(rule, count, side):
    maps = torch.rand(2, count, side, 2 * side, generator=torch.Generator().manual_seed(side))
    found = evidence_by(rule, Evidence(*maps))
    for own, given_ in zip((found.projection, found.energy), maps, strict=True):
        assert own.shape == given_.shape
        assert torch.equal(own.ravel().sort().values, given_.ravel().sort().values)


def test_a_run_gives_each_row_the_evidence_of_its_rule(model, spec_of, tmp_path, monkeypatch):
    few = "set: {elbo_steps: 3, collect_steps: 2, edges: none}"
    rows = "".join(
        f"  - {{name: {rule}, method: dense, evidence: {rule}, {few}}}\n" for rule in EVIDENCE
    )
    bench = Bench(spec_of(rows, before="default").rows, model)
    dataset, seen = dataset_of(tmp_path, 4), []
    plan_timesteps = measuring.plan_timesteps

    def spy(*arguments):
        seen.append(plan_timesteps(*arguments)[1].noise)
        return plan_timesteps(*arguments)

    monkeypatch.setattr(measuring, "plan_timesteps", spy)
    subjects = [Subject(dataset[3], 3, dataset.classes, 7) for _ in range(2)]
    (image, again), _ = bench.measure(subjects)
    found = subjects[0].evidence
    for rule in ("exchanged", "shifted"):
        assert torch.equal(found[rule].energy, evidence_by(rule, found["own"]).energy)
    # The noise is neither the others' nor that of another class, and comes of the seed.
    assert len(seen) == 2 * 3
    assert len({tuple(noise.ravel()[:4].tolist()) for noise in seen}) == 3
    shared = subjects[0].timesteps(model.backbone, seen[0], bench.rows[1].config)[1].noise
    assert not any(torch.equal(noise, shared) for noise in seen)
    apart = found["own-noise"]
    assert apart.energy.shape == found["own"].energy.shape
    assert not torch.allclose(apart.projection, found["own"].projection, rtol=0.01)
    torch.testing.assert_close(subjects[1].evidence["own-noise"].energy, apart.energy)
    claimed = [image.tallies[rule][0].claimed for rule in EVIDENCE]
    for index, one in enumerate(claimed):
        assert not any(torch.equal(one, other) for other in claimed[:index])
    assert image.tallies.keys() == again.tallies.keys() == {"plain", *EVIDENCE}
