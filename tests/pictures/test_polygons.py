"""Outlines, filled again by pycocotools and by hand."""

import numpy as np
import pytest
from hypothesis import given
from pycocotools import mask as coco
from scipy import ndimage

from pixalign.pictures.polygons import filled, outlines, signed_area, trace
from pixalign.pictures.segments import find_segments
from random_masks import masks, smooth_mask


def decoded(rings, shape):
    """bool [H, W]: what pycocotools fills."""
    rles = coco.frPyObjects([ring.ravel().tolist() for ring in rings], *shape)
    return coco.decode(coco.merge(rles)) > 0


def overlap(one, other):
    return (one & other).sum() / (one | other).sum()


@given(masks(classes=1))
def test_rings_are_exact(mask):
    region = mask > 0
    rings = trace(region)
    inside = np.zeros(region.shape, dtype=bool)
    for ring in rings:
        inside ^= filled(ring, *region.shape)
    np.testing.assert_array_equal(inside, region)
    assert sum(signed_area(ring) for ring in rings) == region.sum()


@given(masks(classes=1))
def test_a_ring_for_each_part(mask):
    region = mask > 0
    found = outlines(region, simple=False)
    assert len(found.rings) == ndimage.label(region)[1]
    whole = ndimage.binary_fill_holes(region, structure=np.ones((3, 3)))
    if found.rings:
        # A part may stand in another's hole: that is why the filled pixels are no sum.
        assert (decoded(found.rings, region.shape) >= whole).all()
    assert (found.holes == 0) == (found.hole_pixels == 0)
    assert sum(map(signed_area, found.rings)) == region.sum() + found.hole_pixels


@pytest.mark.parametrize("sigma", [3, 10, 25])
def test_simpler_rings_fill_the_same(sigma):
    mask = smooth_mask(360, 480, sigma=sigma)
    numbers, segments = find_segments(mask)
    points = corners = 0
    for segment in segments[:80]:
        left, top, width, height = segment.box
        region = numbers[top : top + height, left : left + width] == segment.number
        found = outlines(region)
        target = ndimage.binary_fill_holes(region, structure=np.ones((3, 3)))
        assert overlap(decoded(found.rings, region.shape), target) >= 0.98
        assert (target & ~region).sum() == found.hole_pixels
        if segment.area > 5000:
            points += sum(map(len, found.rings))
            corners += sum(map(len, outlines(region, simple=False).rings))
    assert points <= corners / 3


def test_by_hand():
    region = np.zeros((5, 6), dtype=bool)
    region[1:4, 1:5] = True
    region[2, 2] = False
    outer, hole = trace(region)
    assert outer.tolist() == [[1, 1], [5, 1], [5, 4], [1, 4]]
    assert signed_area(hole) == -1
    assert outlines(region)[1:] == (1, 1)
    np.testing.assert_array_equal(filled(outer, 5, 6).sum(), 12)
    assert trace(np.zeros((3, 3), dtype=bool)) == []
