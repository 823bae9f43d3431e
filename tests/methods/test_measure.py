"""One measurement, many settings: what `conclude` gives is what `align` would, without a pass."""

import dataclasses

import numpy as np
import pytest
import torch

import pixalign as pa
import tiny
from helpers import batches, small
from pixalign.methods import METHODS
from pixalign.methods.dense import Dense

CLASSES = ["zebra", "dog", "hot dog"]
QUICK = {"elbo_steps": 3, "collect_steps": 2}
SETTINGS = [
    ("dense", pa.AlignConfig(**QUICK)),
    ("dense", pa.AlignConfig(**QUICK, evidence_strength=0.5, evidence_margin=0.0)),
    ("elbo", pa.AlignConfig(**QUICK)),
    ("elbo", pa.AlignConfig(**QUICK, gamma=0.8, centred=True)),
    ("elbo", pa.AlignConfig.paper(**QUICK, prompt_order="sorted")),
    ("attention", pa.AlignConfig(**QUICK)),
    ("attention", pa.AlignConfig(**QUICK, cross_weights="agreement")),
]


@pytest.fixture(scope="module")
def model():
    return pa.load(small("sd1"))


@pytest.fixture(scope="module")
def encoded(model):
    return model.encode(tiny.photo(60, 40))


@pytest.fixture(scope="module")
def measured(model, encoded):
    return Dense(model).measure(encoded, CLASSES, config=pa.AlignConfig(**QUICK), seed=3)


@pytest.mark.parametrize(("name", "config"), SETTINGS)
def test_settings_share_a_measurement(model, encoded, measured, name, config):
    expected = model.align(encoded, CLASSES, method=name, config=config, seed=3)
    found, passes = batches(model.pipe, lambda: METHODS[name](model).conclude(measured, config))
    assert passes == []
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=2e-4)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-3)
    assert np.array_equal(np.isnan(found.elbo), np.isnan(expected.elbo))
    assert found.config == expected.config
    assert (found.trust is None) == (expected.trust is None)
    for key in ("prompts", "seed", "model", "method", "supervised"):
        assert found.provenance[key] == expected.provenance[key]


def test_its_own_config_gives_every_bit(model, encoded, measured):
    config = pa.AlignConfig(**QUICK)
    expected = model.align(encoded, CLASSES, config=config, seed=3)
    found = Dense(model).conclude(measured, config)
    assert np.array_equal(found.heatmaps, expected.heatmaps)
    assert found.trust == expected.trust
    assert found.to_dict() == expected.to_dict()


def test_errors_that_are_known_are_not_measured_again(model, encoded, measured):
    def more():
        known = measured.task.errors
        how = {"config": pa.AlignConfig(**QUICK), "seed": 3, "errors": known}
        return Dense(model).measure(encoded, [*CLASSES, "cat"], **how)

    again, passes = batches(model.pipe, more)
    assert sum(passes) == 3 + 2  # one text at the ELBO's timesteps, one prompt at collecting's
    config = pa.AlignConfig(**QUICK)
    expected = model.align(encoded, [*CLASSES, "cat"], config=config, seed=3)
    found = Dense(model).conclude(again, config)
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=2e-4)


def test_further_texts_are_measured_beside(model, encoded, measured):
    """With the same noise, once each; what is concluded does not change."""
    config = pa.AlignConfig(**QUICK)
    further = ("a photo of cat", "a photo of dog", "a photo of cat")

    def more():
        return Dense(model).measure(encoded, CLASSES, config=config, seed=3, further=further)

    again, passes = batches(model.pipe, more)
    assert sum(passes) == 3 * (1 + 3 + 1) + 2  # the empty text, the classes' and one more
    cat = Dense(model).measure(encoded, ["cat"], config=config, seed=3).task.errors
    own = again.task.errors.of(["a photo of cat"])
    torch.testing.assert_close(own.losses, cat.of(own.texts).losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own.maps, cat.of(own.texts).maps, rtol=1e-3, atol=1e-4)
    expected, found = (Dense(model).conclude(each, config) for each in (measured, again))
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=2e-4)


@pytest.mark.parametrize(
    "other",
    [
        {"elbo_steps": 4},
        {"collect_steps": 3},
        {"template": "a picture of {}"},
        {"prompt_order": "given"},
        {"absent": "drop"},
    ],
)
def test_settings_that_need_other_passes_are_refused(model, measured, other):
    config = pa.AlignConfig(**(QUICK | other))
    with pytest.raises(ValueError, match="reads other passes than were measured"):
        Dense(model).conclude(measured, config)


def test_losses_alone_do_not_do_for_evidence(model, encoded, measured):
    alone = METHODS["elbo"](model).measure(encoded, CLASSES, config=pa.AlignConfig(**QUICK))
    METHODS["elbo"](model).conclude(alone, pa.AlignConfig(**QUICK, gamma=0.5))
    with pytest.raises(ValueError, match="other passes"):
        Dense(model).conclude(alone, pa.AlignConfig(**QUICK))
    task = dataclasses.replace(measured.task, errors=None)
    with pytest.raises(ValueError, match="other passes"):
        Dense(model).conclude(dataclasses.replace(measured, task=task), pa.AlignConfig(**QUICK))
