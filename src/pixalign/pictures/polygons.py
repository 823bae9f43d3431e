"""Outlines of regions: exact rings along the sides of pixels, made simpler, and filled again."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ring = NDArray[np.float64]  # [points, 2], x and y; pixel (0, 0) covers 0 to 1
_TOLERANCES = (1.0, 0.75, 0.5)  # in pixels, tried in this order; else the ring stays exact
_SAME = 0.99  # the intersection over union that a simpler ring must keep
_ROUNDING = tuple(
    product((-0.2, 0.2), repeat=2)
)  # pixels by which readers may move a ring when they fill it
_SMALL = 100  # pixels; a smaller ring stays exact


class Outlines(NamedTuple):
    """A region's outer rings, and what they do not tell: its holes and the pixels in them."""

    rings: tuple[Ring, ...]
    holes: int
    hole_pixels: int


def outlines(region: NDArray[np.bool_], *, simple: bool = True) -> Outlines:
    """The outer rings of a region [H, W], one for each part that is connected over sides.

    A ring fills its holes. ``simple`` leaves points out as long as they are within a pixel of the
    ring and the filled area stays the same to one per cent, however a reader rounds; small rings
    stay exact.
    """
    outer: list[Ring] = []
    holes, hole_pixels = 0, 0
    for ring in trace(region):
        area = signed_area(ring)
        if area < 0:
            holes, hole_pixels = holes + 1, hole_pixels - int(area)
        else:
            outer.append(simplified(ring) if simple and area >= _SMALL else ring)
    return Outlines(tuple(outer), holes, hole_pixels)


def trace(region: NDArray[np.bool_]) -> list[Ring]:
    """All rings around a region [H, W], exact, with their corners only.

    Outer rings run clockwise on the screen, those around holes the other way. Pixels that touch
    at a corner alone are apart, so that no ring crosses itself.
    """
    padded = np.pad(region, 1).astype(np.int8)
    a, b, c, d = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    one = (a + b + c + d) % 2 == 1  # a corner of the ring; where two pixels touch, there are two
    falling, rising = (a & d & ~b & ~c) == 1, (b & c & ~a & ~d) == 1
    count = (one + 2 * (falling | rising)).ravel()
    place = np.repeat(np.arange(count.size), count)
    y, x = np.divmod(place, one.shape[1])
    # In a row corners pair up from left to right, in a column from top to bottom. Of two at one
    # place the first belongs to the side on the left, and that is the upper pixel's if falling.
    second = np.zeros(len(place), dtype=bool)
    second[1:] = place[1:] == place[:-1]
    across = np.arange(len(place)) ^ 1
    by_column = np.lexsort((second ^ rising.ravel()[place], y, x))
    along = np.empty_like(across)
    along[by_column] = by_column[np.arange(len(place)) ^ 1]
    left = np.arange(len(place)) % 2 == 0
    inside_below = d[y, x] == 1  # of the side that starts here
    starts = np.flatnonzero(left & inside_below | ~left & ~inside_below[across])
    return _rings(np.stack([x, y], axis=1), across, along, starts)


def _rings(
    points: NDArray[np.int64],
    across: NDArray[np.int64],
    along: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> list[Ring]:
    """Walk from every start, sideways and up or down in turn, until the start is reached again."""
    across_of, along_of = across.tolist(), along.tolist()
    seen = bytearray(len(points))
    rings: list[Ring] = []
    for start in starts.tolist():
        walk: list[int] = []
        corner = start
        while not seen[corner]:
            seen[corner] = 1
            turned = across_of[corner]
            walk += (corner, turned)
            corner = along_of[turned]
        if walk:
            rings.append(points[walk].astype(np.float64))
    return rings


def signed_area(ring: Ring) -> float:
    """The area inside a ring: above 0 if it runs clockwise on the screen."""
    x, y = ring.T
    return float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum() / 2)


def simplified(ring: Ring) -> Ring:
    """A ring with fewer points that fills the same pixels to one per cent, or the ring itself."""
    corner = np.floor(ring.min(0)).astype(int)
    width, height = (np.ceil(ring.max(0)).astype(int) - corner).tolist()
    exact = filled(ring - corner, height, width)
    starts = (ring, _middles(ring))  # along a slope, middles stand on the line, corners beside it
    for tolerance, start in product(_TOLERANCES, starts):
        simpler = _thinned(start, tolerance)
        if 3 <= len(simpler) < len(ring):
            again = [filled(simpler - corner + shift, height, width) for shift in _ROUNDING]
            if all((exact & one).sum() >= _SAME * (exact | one).sum() for one in again):
                return simpler
    return ring


def _middles(ring: Ring) -> Ring:
    """The middles of the sides of pixels that an exact ring follows."""
    step = np.roll(ring, -1, axis=0) - ring
    length = np.abs(step).sum(1).astype(int)
    side = np.repeat(np.arange(len(ring)), length)
    place = np.arange(len(side)) - np.repeat(length.cumsum() - length, length)
    middles: Ring = ring[side] + np.sign(step)[side] * (place + 0.5)[:, None]
    return middles


def _thinned(ring: Ring, tolerance: float) -> Ring:
    """Douglas and Peucker's choice of points: none of those left out is further off than that."""
    far = int(((ring - ring[0]) ** 2).sum(1).argmax())
    kept = np.zeros(len(ring) + 1, dtype=bool)
    kept[[0, far]] = True
    closed = np.concatenate([ring, ring[:1]])
    spans = [(0, far), (far, len(ring))]
    while spans:
        first, last = spans.pop()
        if last - first < 2:
            continue
        chord = closed[last] - closed[first]
        offset = closed[first + 1 : last] - closed[first]
        if chord.any():
            distance = np.abs(offset @ (chord[1], -chord[0])) / np.hypot(*chord)
        else:
            distance = np.hypot(*offset.T)
        worst = int(distance.argmax())
        if distance[worst] > tolerance:
            kept[first + 1 + worst] = True
            spans += [(first, first + 1 + worst), (first + 1 + worst, last)]
    return ring[kept[:-1]]


def filled(ring: Ring, height: int, width: int) -> NDArray[np.bool_]:
    """bool [height, width]: the pixels whose centre is inside a ring, by the even-odd rule."""
    (x0, y0), (x1, y1) = ring.T, np.roll(ring, -1, axis=0).T
    top, bottom = (np.ceil(edge(y0, y1) - 0.5).astype(int) for edge in (np.minimum, np.maximum))
    top, bottom = top.clip(0, height), bottom.clip(0, height)  # rows whose centre a side crosses
    count = bottom - top
    side = np.repeat(np.arange(len(ring)), count)
    row = np.arange(len(side)) - np.repeat(count.cumsum() - count, count) + top[side]
    slope = (x1 - x0)[side] / (y1 - y0)[side]
    crossing = x0[side] + (row + 0.5 - y0[side]) * slope
    column = np.ceil(crossing - 0.5).astype(int).clip(0, width)
    crossings = np.zeros((height, width + 1), dtype=np.int64)
    np.add.at(crossings, (row, column), 1)
    inside: NDArray[Any] = crossings.cumsum(1)[:, :width] % 2 == 1
    return inside
