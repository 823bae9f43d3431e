"""Masks for property tests, and smooth ones as a model makes them."""

import hypothesis.strategies as st
import numpy as np
from hypothesis.extra.numpy import arrays
from scipy import ndimage


def masks(classes=2, side=12):
    """uint8 [H, W] of any values from 0 to ``classes``."""
    shapes = st.tuples(st.integers(1, side), st.integers(1, side))
    return arrays(np.uint8, shapes, elements=st.integers(0, classes))


def smooth_mask(height, width, classes=3, sigma=6.0, seed=0):
    """uint8 [H, W]: blobs of several classes on a background, such as masks of heatmaps are."""
    noise = np.random.default_rng(seed).normal(size=(classes, height, width))
    maps = np.stack([ndimage.gaussian_filter(one, sigma) for one in noise])
    maps /= maps.std()
    return np.where(maps.max(0) < 0.8, 0, maps.argmax(0) + 1).astype(np.uint8)
