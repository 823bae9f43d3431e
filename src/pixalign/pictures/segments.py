"""From a mask of classes to segments: connected regions, their boxes, areas and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Segment:
    """One object, or all of a class where objects are not told apart.

    ``label`` is the class's number in the data set, from 1; ``number`` is the segment's in its
    picture, from 1; ``box`` is (left, top, width, height) in pixels and ``area`` counts pixels.
    ``score`` in [0, 1] is the mean probability of the class over the segment.
    """

    number: int
    label: int
    score: float
    box: Box
    area: int


def connected(mask: NDArray[Any]) -> NDArray[np.int64]:
    """int64 [H, W]: the number of each pixel's region, from 0 in the order of first pixels.

    A region is all that can be reached over sides, not corners, of pixels of one value; the
    background's are regions too.
    """
    starts = np.ones(mask.shape, dtype=bool)
    starts[:, 1:] = mask[:, 1:] != mask[:, :-1]
    runs = (np.cumsum(starts) - 1).reshape(mask.shape)
    above, below = (part[mask[1:] == mask[:-1]] for part in (runs[:-1], runs[1:]))
    new = np.ones(len(above), dtype=bool)  # neighbouring columns repeat a pair of runs
    new[1:] = (np.diff(above) != 0) | (np.diff(below) != 0)
    above, below = above[new], below[new]
    root = np.arange(int(runs[-1, -1]) + 1)
    while True:
        one, other = root[above], root[below]
        if np.array_equal(one, other):
            break
        lower = np.minimum(one, other)
        np.minimum.at(root, one, lower)
        np.minimum.at(root, other, lower)
        while not np.array_equal(root, root[root]):
            root = root[root]
    number = np.cumsum(root == np.arange(len(root))) - 1  # a region's root is its first run
    regions: NDArray[np.int64] = number[root][runs]
    return regions


def find_segments(
    mask: NDArray[Any],
    probability: NDArray[np.floating[Any]] | None = None,
    *,
    instances: bool = True,
    min_area: int = 0,
    regions: NDArray[np.integer[Any]] | None = None,
) -> tuple[NDArray[np.uint16], tuple[Segment, ...]]:
    """Which segment each pixel of a mask [H, W] belongs to, uint16 [H, W] (0: none), and all of
    them, by class and then from the top.

    ``probability`` [H, W] is each pixel's for the class that it has; without it scores are 1.
    With ``instances`` the connected regions of a class are its segments, else all its pixels are
    one. Those below ``min_area`` pixels are left out, and of more than 65,535 the smallest.
    ``regions`` is `connected(mask)` where that is known.
    """
    if not instances:
        regions = mask.astype(np.int64)
    elif regions is None:
        regions = connected(mask)
    areas = np.bincount(regions.ravel())
    labels = np.zeros(len(areas), dtype=np.int64)
    labels[regions] = mask
    kept = np.flatnonzero((labels > 0) & (areas >= max(1, min_area)))
    kept = kept[np.argsort(-areas[kept], kind="stable")][: np.iinfo(np.uint16).max]
    kept = kept[np.lexsort((kept, labels[kept]))]
    renumbered = np.zeros(len(areas), dtype=np.uint16)
    renumbered[kept] = np.arange(1, len(kept) + 1)
    segments_map = renumbered[regions]
    if probability is None:
        scores = np.ones(len(kept))
    else:
        sums = np.bincount(segments_map.ravel(), probability.ravel(), minlength=len(kept) + 1)
        scores = np.clip(sums[1:] / areas[kept], 0, 1)
    return segments_map, tuple(
        Segment(index + 1, int(labels[region]), float(scores[index]), box, int(areas[region]))
        for index, (region, box) in enumerate(
            zip(kept, _boxes(segments_map, len(kept)), strict=True)
        )
    )


def _boxes(segments_map: NDArray[np.uint16], count: int) -> list[Box]:
    """(left, top, width, height) of the segments 1 to ``count``."""
    ends = []
    for turned in (segments_map.T, segments_map):
        # What is written last stays: the lowest line of a segment, then the highest.
        line = np.repeat(np.arange(len(turned)), turned.shape[1])
        flat = turned.ravel()
        low, high = np.zeros((2, count + 1), dtype=np.int64)
        low[flat[::-1]] = line[::-1]
        high[flat] = line
        ends += [low, high - low + 1]
    left, width, top, height = (end[1:].tolist() for end in ends)
    return list(zip(left, top, width, height, strict=True))
