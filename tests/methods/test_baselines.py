"""The baselines against slow re-implementations, same noise; and the traps these fell into."""

from functools import cache

import numpy as np
import pytest
import torch

import baseline_references as reference
import pixalign as pa
import tiny
from helpers import model_of
from pixalign.methods import METHODS
from pixalign.pictures.reading import to_pixels

CLASSES = ["screen", "hot dog", "zebra"]
SCORES = (1.0, 0.4, 0.7)
STEPS = (20, 110, 200)
OPTIONS = {
    "daam": {"timesteps": STEPS},
    "ovam": {"timesteps": STEPS},
    "ovam-optimized": {"timesteps": STEPS[:2], "epochs": 3},
    "diffsegmenter": {},
    "diffseg": {"anchors": 8, "threshold": 0.1},
    "diffpng": {"timesteps": STEPS},
}
NAMES = tuple(OPTIONS)
CASES = (("sd1", "keep", SCORES), ("sd2-v", "square", None), ("sdxl", "keep", None))


@cache
def small(name):
    """A tiny pipeline at 64 pixels."""
    pipe = tiny.BUILDERS[name]()
    pipe.unet.register_to_config(sample_size=16)
    return pipe


@cache
def photo(resize):
    return tiny.photo(150, 60) if resize == "keep" else tiny.photo(70, 90)


def masks(resize):
    height, width = photo(resize).height, photo(resize).width
    found = torch.zeros(len(CLASSES), height, width, dtype=torch.bool)
    found[0, : height // 2, : width // 3] = True
    found[1, height // 2 :, width // 2 :] = True
    found[2, height // 4 : 3 * height // 4, width // 4 : width // 2] = True
    return found


@cache
def ours(name, family, resize, scores):
    config = pa.AlignConfig(prompt_order="given", resize=resize)
    aligner = model_of(small(family), config=config, batch_size=2)
    method = METHODS[name](aligner, **OPTIONS[name])
    extra = {"target_masks": masks(resize)} if method.supervised else {}
    return method.align(photo(resize), CLASSES, seed=3, scores=scores, **extra)


@cache
def theirs(name, family, resize, scores, trap=None):
    pipe, picture = small(family), photo(resize)
    encoded = model_of(pipe, config=pa.AlignConfig(resize=resize)).encode(picture)
    seen = tuple(side * 4 for side in encoded.latents.shape[-2:])
    setting = reference.Setting(
        pipe, to_pixels(picture, seen), (picture.height, picture.width), CLASSES, 3, scores, trap
    )
    if name == "ovam-optimized":
        return reference.ovam_optimized(setting, masks(resize), 3, STEPS[:2]).numpy()
    if name == "diffseg":
        return reference.diffseg(setting, 8, 0.1)[0].numpy()
    if name == "diffsegmenter":
        return reference.diffsegmenter(setting).numpy()
    return getattr(reference, name)(setting, STEPS).numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("name", NAMES)
def test_heatmaps_match_the_slow_reading(name, case):
    found, expected = ours(name, *case).heatmaps, theirs(name, *case)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (np.ptp(found, axis=(1, 2)) > 0.9).all(), "maps without contrast compare nothing"


def test_segments_are_merged_and_several():
    count = ours("diffseg", "sd1", "keep", SCORES).provenance["layers"]["segments"]
    assert 1 < count < 64


@pytest.mark.parametrize(
    ("name", "trap"),
    [
        *((name, "half-heads") for name in NAMES),
        *((name, "unconditional") for name in NAMES if name != "ovam-optimized"),
        *((name, "swapped") for name in NAMES if name != "ovam-optimized"),
        *((name, "constant-self") for name in ("diffsegmenter", "diffseg", "diffpng")),
        *((name, "sampled") for name in NAMES if name != "ovam-optimized"),
        ("diffseg", "noised"),
    ],
)
def test_known_mistakes_would_be_seen(name, trap):
    """The reading that has the mistake is far from ours, which equals the one that has not."""
    found, wrong = ours(name, *CASES[0]).heatmaps, theirs(name, *CASES[0], trap=trap)
    assert np.abs(found - theirs(name, *CASES[0])).max() < 1e-4
    assert np.nanmax(np.abs(found - wrong)) > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_scores_change_the_maps_and_only_where_they_are_below_one(name):
    plain, calibrated = ours(name, *CASES[0][:2], None), ours(name, *CASES[0])
    changed = np.abs(plain.heatmaps - calibrated.heatmaps).max((1, 2))
    assert changed.max() > 0.01
    if name != "diffseg":  # there, classes compete for segments
        assert changed[0] < 1e-5
        assert (changed[1:] > 0.01).all()
    np.testing.assert_allclose(calibrated.scores, SCORES)
    np.testing.assert_allclose(calibrated.exponents, 1 / np.array(SCORES), rtol=1e-6)
    assert calibrated.config.calibrate == "elbo"
    assert plain.config.calibrate == "none"
    assert (plain.scores == 1).all()


def test_daam_calibrates_its_word_maps():
    """minmax(h) ** (1 / S) of the map at the latent's size, then bilinear and min-max."""
    plain, calibrated = (ours("daam", "sd1", "square", s) for s in (None, (0.5, 0.5, 0.5)))
    # The square of a map, before bilinear enlarging, is near the square of the enlarged one.
    assert np.abs(plain.heatmaps**2 - calibrated.heatmaps).mean() < 0.02
    assert np.abs(plain.heatmaps - calibrated.heatmaps).mean() > 0.05


def test_layers_that_are_lacking_are_said():
    weights = ours("diffsegmenter", *CASES[2]).provenance["layers"]["cross_weights"]
    assert weights == pytest.approx({2: 0.1 / 0.6, 4: 0.5 / 0.6})
    full = ours("diffsegmenter", *CASES[0]).provenance["layers"]["cross_weights"]
    assert full == pytest.approx({1: 0.1, 2: 0.1, 4: 0.5, 8: 0.3})
    assert ours("daam", *CASES[0]).provenance["layers"]["cross_factors"] == [1, 2, 4]
    assert ours("daam", *CASES[2]).provenance["layers"]["cross_factors"] == [2, 4]
    shares = ours("diffseg", *CASES[0]).provenance["layers"]["self_weights"]
    assert shares == pytest.approx({1: 8 / 15, 2: 4 / 15, 4: 2 / 15, 8: 1 / 15})
