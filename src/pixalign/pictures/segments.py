"""From a mask of classes to segments: connected regions, their boxes, areas and scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixalign.core.values import Size

Box = tuple[int, int, int, int]
Integers = NDArray[np.int64]


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


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of a mask, held as its runs: neighbours of one value on one line.

    A run begins at a place of ``starts`` [R] in the raveled mask and is the region ``owners`` [R]
    's. ``labels`` [N] are the regions' values. There are far fewer runs than pixels.
    """

    size: Size
    starts: Integers
    owners: Integers
    labels: Integers

    @cached_property
    def lengths(self) -> Integers:
        """int64 [R]: the pixels of each run."""
        return np.diff(self.starts, append=self.size[0] * self.size[1])

    @cached_property
    def areas(self) -> Integers:
        """int64 [N]: the pixels of each region."""
        return self.total(self.lengths).astype(np.int64)

    def total(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """float64 [N]: the sum over each region of values [R] of runs."""
        return np.bincount(self.owners, values, len(self.labels)).astype(np.float64)

    def sums(self, values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """float64 [N]: the sum over each region of values [H, W]."""
        return self.total(np.add.reduceat(values.ravel(), self.starts, dtype=np.float64))

    def painted(self, values: NDArray[Any]) -> NDArray[Any]:
        """[H, W]: at each pixel the value of its region, of values [N]."""
        return np.repeat(values[self.owners], self.lengths).reshape(self.size)

    def merged(self) -> Regions:
        """The same with one region a label, from 0."""
        labels = np.arange(int(self.labels.max()) + 1)
        return replace(self, owners=self.labels[self.owners], labels=labels)

    def numbered(self, min_area: int = 0) -> Integers:
        """The regions that are segments, in the order of `find_segments`."""
        kept = np.flatnonzero((self.labels > 0) & (self.areas >= max(1, min_area)))
        kept = kept[np.argsort(-self.areas[kept], kind="stable")][: np.iinfo(np.uint16).max]
        return kept[np.lexsort((kept, self.labels[kept]))]

    def boxes(self) -> NDArray[np.int64]:
        """int64 [4, N]: left, top, width and height; of a region without pixels 0."""
        top, left = np.divmod(self.starts, self.size[1])
        right = left + self.lengths
        order = np.argsort(self.owners, kind="stable")
        owners = self.owners[order]
        first = np.flatnonzero(np.diff(owners, prepend=-1))
        low_x, low_y = (np.minimum.reduceat(x[order], first) for x in (left, top))
        high_x, high_y = (np.maximum.reduceat(x[order], first) for x in (right, top + 1))
        boxes = np.zeros((4, len(self.labels)), dtype=np.int64)
        boxes[:, owners[first]] = low_x, low_y, high_x - low_x, high_y - low_y
        return boxes


def connected(mask: NDArray[Any]) -> Regions:
    """The connected regions of a mask [H, W], in the order of their first pixels.

    A region is all that can be reached over sides, not corners, of pixels of one value; the
    background's are regions too.
    """
    height, width = mask.shape
    begins = np.ones(mask.shape, dtype=bool)
    np.not_equal(mask[:, 1:], mask[:, :-1], out=begins[:, 1:])
    starts = np.flatnonzero(begins)
    values = mask.ravel()[starts]
    # Where two runs touch, one of them begins beside the other.
    every = np.arange(len(starts))
    lower, upper = starts >= width, starts < (height - 1) * width
    above = np.searchsorted(starts, starts[lower] - width, "right") - 1
    below = np.searchsorted(starts, starts[upper] + width, "right") - 1
    one, other = np.concatenate([above, every[upper]]), np.concatenate([every[lower], below])
    alike = values[one] == values[other]
    root = _roots(len(starts), one[alike], other[alike])
    first = root == every  # a region's root is its first run
    owners = (np.cumsum(first) - 1)[root]
    return Regions((height, width), starts, owners, values[first].astype(np.int64))


def _roots(count: int, above: Integers, below: Integers) -> Integers:
    """int64 [count]: of each run the first that it is joined to by pairs, above and below."""
    root = np.arange(count)
    while True:
        one, other = root[above], root[below]
        if np.array_equal(one, other):
            return root
        lower = np.minimum(one, other)
        np.minimum.at(root, one, lower)
        np.minimum.at(root, other, lower)
        while not np.array_equal(root, root[root]):
            root = root[root]


def find_segments(
    mask: NDArray[Any],
    probability: NDArray[np.floating[Any]] | None = None,
    *,
    instances: bool = True,
    min_area: int = 0,
) -> tuple[NDArray[np.uint16], tuple[Segment, ...]]:
    """Which segment each pixel of a mask [H, W] belongs to, uint16 [H, W] (0: none), and all of
    them, by class and then from the top.

    ``probability`` [H, W] is each pixel's for the class that it has; without it scores are 1.
    With ``instances`` the connected regions of a class are its segments, else all its pixels are
    one. Those below ``min_area`` pixels are left out, and of more than 65,535 the smallest.
    """
    regions = connected(mask)
    sums = None if probability is None else regions.sums(probability)
    return segments_of(regions, sums, instances=instances, min_area=min_area)


def segments_of(
    regions: Regions,
    sums: NDArray[np.float64] | None,
    *,
    instances: bool = True,
    min_area: int = 0,
) -> tuple[NDArray[np.uint16], tuple[Segment, ...]]:
    """`find_segments` of a mask's regions, and the sums [N] of the probabilities over each."""
    if not instances:
        if sums is not None:
            sums = np.bincount(regions.labels, sums).astype(np.float64)
        regions = regions.merged()
    kept = regions.numbered(min_area)
    numbers = np.zeros(len(regions.labels), dtype=np.uint16)
    numbers[kept] = np.arange(1, len(kept) + 1)
    areas = regions.areas[kept]
    scores = np.ones(len(kept)) if sums is None else np.clip(sums[kept] / areas, 0, 1)
    found = zip(
        regions.labels[kept].tolist(),
        scores.tolist(),
        zip(*regions.boxes()[:, kept].tolist(), strict=True),
        areas.tolist(),
        strict=True,
    )
    segments = (Segment(number, *each) for number, each in enumerate(found, start=1))
    return regions.painted(numbers), tuple(segments)
