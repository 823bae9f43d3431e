"""Label Studio's brush: the runs of a picture's RGBA bytes, packed into bits as rle-pack does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 8  # bits of a value
_SIZES = (3, 4, 8, 16)  # bits that a run's length may take; two bits say which of them
_LONGEST = 1 << _SIZES[-1]


def brush_runs(region: NDArray[np.bool_]) -> list[int]:
    """The bytes of a region [H, W], True as opaque white and False as transparent black.

    32 bits count the values, 5 hold the bits of a value less 1, 4 x 4 those of lengths less 1. A
    run is a 1, two bits for the size of its length, the length less 1, and the value. Values run
    row by row, four a pixel.
    """
    flat = region.ravel()
    ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]) + 1, flat.size)
    lengths = 4 * np.diff(ends, prepend=0)
    values = 255 * flat[ends - 1].astype(np.int64)
    pieces = -(-lengths // _LONGEST)  # a long run is several
    values = np.repeat(values, pieces)
    cut = np.full(int(pieces.sum()), _LONGEST)
    cut[pieces.cumsum() - 1] = lengths - (pieces - 1) * _LONGEST
    which = np.searchsorted([1 << size for size in _SIZES], cut)
    size = np.array(_SIZES)[which]
    code = (((4 | which) << size | cut - 1) << _WORD) | values
    header = [4 * flat.size, _WORD - 1, *(size - 1 for size in _SIZES)]
    codes = np.concatenate([header, code])
    bits = np.concatenate([[32, 5, 4, 4, 4, 4], 3 + size + _WORD])
    return [int(byte) for byte in _packed(codes, bits)]


def _packed(codes: NDArray[np.int64], bits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Numbers of so many bits each, one after the other, the highest bit first; 0 at the end."""
    owner = np.repeat(np.arange(len(codes)), bits)
    below = np.repeat(bits.cumsum(), bits) - 1 - np.arange(len(owner))
    return np.packbits((codes[owner] >> below & 1).astype(np.uint8))
