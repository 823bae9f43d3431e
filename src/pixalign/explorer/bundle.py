"""Numbers and pictures in one answer: a JSON header, then the arrays as they are in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

_ALIGNED = 8  # bytes: where a browser may lay any kind of array on its buffer


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray | bytes]) -> bytes:
    """uint32 length of the header, the header, the arrays; all little-endian, from multiples of 8.

    The header's ``arrays`` say of each its name, dtype, shape, and where it begins after the
    header. Bytes, such as a PNG file's, are uint8.
    """
    parts: list[bytes] = []
    about: list[dict[str, Any]] = []
    begin = 0
    for name, given in arrays.items():
        raw = isinstance(given, bytes)
        values = np.frombuffer(given, np.uint8) if raw else np.ascontiguousarray(given)
        kind = {"name": name, "dtype": values.dtype.name, "shape": list(values.shape)}
        about.append({**kind, "begin": begin})
        data = _filled(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
        parts.append(data)
        begin += len(data)
    text = json.dumps({**header, "arrays": about}, ensure_ascii=False, allow_nan=False)
    head = _filled(text.encode(), 4, b" ")
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def _filled(data: bytes, before: int = 0, filler: bytes = b"\0") -> bytes:
    """Data until, with what stands before, a multiple of 8 bytes is reached."""
    return data + filler * (-(before + len(data)) % _ALIGNED)
