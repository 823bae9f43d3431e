"""`official()` against a naive re-implementation of the released computation, same noise."""

import numpy as np
import pytest
import torch

import pixalign as pa
import released
import tiny
from helpers import model_of, small
from pixalign.pictures.reading import to_pixels

CLASSES = ["screen", "hot dog", "zebra", "screen door"]


@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_losses_exponents_and_heatmaps_match(name):
    # At 64 pixels the losses of sd2-base are so nearly alike that float32 could not order them.
    pipe = tiny.BUILDERS[name]() if name == "sd2-base" else small(name)
    picture = tiny.photo(90, 70)
    aligner = model_of(pipe, config=pa.AlignConfig.official(), batch_size=7)

    ours = aligner.align(picture, CLASSES, generator=torch.Generator().manual_seed(3))
    pixels = to_pixels(picture, aligner.backbone.native_size)
    theirs = released.released(pipe, pixels, (70, 90), CLASSES, torch.Generator().manual_seed(3))

    np.testing.assert_allclose(ours.losses, theirs.losses, atol=1e-4)
    np.testing.assert_allclose(ours.exponents, theirs.exponents, atol=1e-4 * 3)
    np.testing.assert_allclose(ours.heatmaps, theirs.heatmaps, atol=1e-4)
    assert np.ptp(ours.exponents) == pytest.approx(2, abs=1e-5)


def test_gaussian_layer_weights_match():
    pipe, picture = small("sd1"), tiny.photo(64, 64)
    config = pa.AlignConfig.official(cross_weights="gaussian", collect_timesteps=(20, 120))
    aligner = model_of(pipe, config=config)

    ours = aligner.align(picture, CLASSES, generator=torch.Generator().manual_seed(1))
    pixels = to_pixels(picture, aligner.backbone.native_size)
    run = (pipe, pixels, (64, 64), CLASSES, torch.Generator().manual_seed(1))
    theirs = released.released(*run, cross_weights="gaussian", collect_timesteps=(20, 120))
    np.testing.assert_allclose(ours.heatmaps, theirs.heatmaps, atol=1e-4)
