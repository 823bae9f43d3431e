"""Scores and calibration: worked cases and invariants."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pixalign.alignment.calibrate import alignment_scores, calibrate, weighted_elbo
from pixalign.core.maps import minmax

elbos = hnp.arrays(
    np.float64, st.integers(1, 9), elements=st.floats(0.01, 10, allow_subnormal=False)
).map(torch.from_numpy)
gammas = st.floats(0.05, 1.0)


def test_scores_by_hand():
    scores = alignment_scores(torch.tensor([0.2, 0.3, 0.4]), 1 / 3)
    expected = [1, math.sqrt(1 / 3), 1 / 3]
    assert scores.tolist() == pytest.approx(expected, abs=1e-6)
    assert scores.dtype == torch.float32


def test_two_classes_always_score_one_and_gamma():
    assert alignment_scores(torch.tensor([1.0, 1.001]), 1 / 3).tolist() == pytest.approx([1, 1 / 3])
    assert alignment_scores(torch.tensor([9.0, 1.0]), 1 / 3).tolist() == pytest.approx([1 / 3, 1])


@pytest.mark.parametrize("elbo", [[0.7], [0.7, 0.7, 0.7], [0.0, 0.0]])
def test_nothing_to_compare_scores_one(elbo):
    assert alignment_scores(torch.tensor(elbo), 1 / 3).tolist() == [1.0] * len(elbo)


def test_gamma_one_is_no_calibration():
    assert alignment_scores(torch.tensor([1.0, 2.0, 5.0]), 1.0).tolist() == [1, 1, 1]


@given(elbos, gammas)
def test_scores_are_bounded_and_fall_with_the_loss(elbo, gamma):
    scores = alignment_scores(elbo, gamma)
    assert (scores >= np.float32(gamma) * (1 - 1e-6)).all()
    assert (scores <= 1).all()
    order = elbo.argsort()
    assert (scores[order].diff() <= 1e-7).all()


@given(elbos, gammas, st.floats(0.1, 100))
def test_scores_ignore_the_scale_of_losses(elbo, gamma, scale):
    torch.testing.assert_close(
        alignment_scores(elbo, gamma), alignment_scores(elbo * scale, gamma), atol=1e-5, rtol=1e-5
    )


@given(elbos, gammas, st.randoms())
def test_scores_follow_a_permutation(elbo, gamma, random):
    order = list(range(len(elbo)))
    random.shuffle(order)
    assert torch.equal(alignment_scores(elbo, gamma)[order], alignment_scores(elbo[order], gamma))


def test_weighted_elbo_is_the_weighted_mean():
    losses, weights = torch.tensor([[1.0, 3.0], [2.0, 6.0]]), torch.tensor([0.25, 0.75])
    assert weighted_elbo(losses, weights).tolist() == [2.5, 5.0]


def test_calibration_by_hand():
    maps = torch.tensor([[[1.0, 2.0, 3.0]], [[0.0, 4.0, 2.0]]])
    found = calibrate(maps, torch.tensor([1.0, 3.0]))
    assert found.tolist() == [[[0, 0.5, 1]], [[0, 1, 0.125]]]


maps_strategy = hnp.arrays(
    np.float64, (2, 4, 5), elements=st.floats(0, 1, allow_subnormal=False)
).map(torch.from_numpy)


@given(maps_strategy, st.floats(1, 8))
def test_calibration_keeps_range_and_order(maps, exponent):
    found = calibrate(maps, torch.tensor([exponent, 1.0]))
    assert (found >= 0).all()
    assert (found <= 1).all()
    plain = minmax(maps, (1, 2))
    assert (found <= plain + 1e-9).all()  # an exponent >= 1 removes activation, never adds
    flat, raised = plain[0].flatten(), found[0].flatten()
    assert (raised[flat.argsort()].diff() >= -1e-9).all()


@given(maps_strategy, st.floats(0.5, 20), st.floats(-5, 5))
def test_minmax_ignores_scale_and_offset(maps, scale, offset):
    varied = maps.amax((1, 2)) - maps.amin((1, 2)) > 1e-3
    found, moved = minmax(maps, (1, 2)), minmax(maps * scale + offset, (1, 2))
    torch.testing.assert_close(found[varied], moved[varied], atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e-20, 1e10])
def test_constant_maps_become_zero_without_nan(value):
    maps = torch.full((2, 3, 4), value)
    assert torch.equal(minmax(maps, (1, 2)), torch.zeros(2, 3, 4))
    assert torch.equal(calibrate(maps, torch.tensor([1.0, 3.0])), torch.zeros(2, 3, 4))


def test_rounding_noise_is_not_stretched_into_a_map():
    noise = 0.25 + 1e-8 * torch.rand(1, 8, 8, dtype=torch.float64)
    assert torch.equal(minmax(noise, (1, 2)), torch.zeros(1, 8, 8, dtype=torch.float64))
