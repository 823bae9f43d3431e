"""Exponents of controls: by hand, as properties, and in a run beside the order that suits best."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_folder import dataset_of
from pixalign.bench.exponents import DRAWS, EXPONENTS, exponents_by
from pixalign.bench.measuring import Bench
from pixalign.bench.metrics import nearest_threshold
from pixalign.bench.subject import Subject

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
