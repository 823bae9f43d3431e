"""Connected regions, compared with scipy's, and what is said of each."""

import numpy as np
import pytest
from hypothesis import given
from scipy import ndimage

from pixalign.pictures.segments import connected, find_segments
from random_masks import masks, smooth_mask


@given(masks())
def test_regions_are_scipys(mask):
    found = connected(mask)
    regions = found.painted(np.arange(len(found.labels)))
    first = np.unique(regions, return_index=True)[1]
    assert (np.diff(first) > 0).all()
    expected = 0
    for value in np.unique(mask):
        labelled, count = ndimage.label(mask == value)
        expected += count
        for number in range(1, count + 1):
            found = np.unique(regions[labelled == number])
            assert len(found) == 1
            assert (regions == found).sum() == (labelled == number).sum()
    assert len(first) == expected


@given(masks())
def test_segments_say_what_is_in_the_map(mask):
    probability = np.linspace(0, 1, mask.size).reshape(mask.shape)
    for instances in (True, False):
        numbers, segments = find_segments(mask, probability, instances=instances)
        assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
        np.testing.assert_array_equal(numbers > 0, mask > 0)
        for segment in segments:
            region = numbers == segment.number
            rows, columns = np.nonzero(region)
            sides = np.ptp(columns) + 1, np.ptp(rows) + 1
            assert segment.box == (columns.min(), rows.min(), *sides)
            assert segment.area == region.sum()
            assert (mask[region] == segment.label).all()
            assert segment.score == pytest.approx(probability[region].mean())


def test_small_segments_are_left_out():
    mask = smooth_mask(60, 80)
    numbers, segments = find_segments(mask, min_area=40)
    everything = find_segments(mask)[1]
    assert 0 < len(segments) < len(everything)
    assert [s.area for s in segments] == [s.area for s in everything if s.area >= 40]
    assert (numbers > 0).sum() == sum(segment.area for segment in segments)


def test_a_map_of_16_bits_holds_the_largest():
    mask = np.indices((520, 520)).sum(0) % 2  # 135,200 pixels that touch at corners alone
    mask[:2, :50] = 1
    numbers, segments = find_segments(mask)
    assert len(segments) == 65_535 == numbers.max()
    assert max(segment.area for segment in segments) >= 100
