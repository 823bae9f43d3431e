"""What a run has labelled, on disk: shards of some pictures each, written whole."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pixalign.core.files import write_bytes
from pixalign.labelling.records import Labels

_NAME = re.compile(r"[0-9a-f]{16}-([0-9a-f]{16})\.npz")  # of the unit, and of the bytes


@dataclass(frozen=True, eq=False)
class PictureLabels:
    """What is kept of a labelled item.

    ``mask`` [H, W] is 0 on the background and i on the i-th of the ``record``'s classes.
    ``scores`` float32 [R] are those of its connected regions, in the order of `find_segments`.
    """

    id: str
    mask: Labels
    scores: NDArray[np.float32]
    record: Mapping[str, Any]


def write_shard(folder: Path, unit: str, labels: Sequence[PictureLabels]) -> Path:
    """A file UNIT-CHECKSUM.npz; the same labels are the same bytes."""
    records = [{"id": each.id, **each.record} for each in labels]
    text = json.dumps(records, ensure_ascii=False, allow_nan=False).encode()
    arrays: dict[str, Any] = {"records": np.frombuffer(text, dtype=np.uint8)}
    for place, each in enumerate(labels):
        arrays |= {f"mask{place}": each.mask, f"scores{place}": each.scores}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    data = file.getvalue()
    checksum = hashlib.sha256(data).hexdigest()[:16]
    return write_bytes(folder / f"{unit}-{checksum}.npz", data)


class Shards:
    """The shards of a folder: which items they hold.

    ``damaged`` are names of files whose bytes are not what they were; their items count as missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[Path, int]] = {}
        self.damaged: list[str] = []
        for path in sorted(folder.glob("*.npz")):
            name = _NAME.fullmatch(path.name) if path.is_file() else None  # a device has no end
            if name is None or hashlib.sha256(path.read_bytes()).hexdigest()[:16] != name[1]:
                self.damaged.append(path.name)
                continue
            for place, record in enumerate(_opened(path)[0]):
                self.places.setdefault(record["id"], (path, place))

    def __contains__(self, item: object) -> bool:
        return item in self.places

    def read(self, item: str) -> PictureLabels:
        """What is kept of an item."""
        path, place = self.places[item]
        try:
            records, arrays = _opened(path)
            record = dict(records[place])
            mask, scores = arrays[f"mask{place}"], arrays[f"scores{place}"]
        except (BadZipFile, KeyError, OSError, ValueError) as error:
            raise ValueError(f"{str(path)!r} is damaged: {error}; label again") from error
        return PictureLabels(record.pop("id"), mask, scores, record)


@lru_cache(maxsize=8)
def _opened(path: Path) -> tuple[list[dict[str, Any]], Mapping[str, NDArray[Any]]]:
    """What a shard says of its pictures, and its arrays, which are unpacked when they are read."""
    arrays = np.load(io.BytesIO(path.read_bytes()))
    return json.loads(arrays["records"].tobytes()), arrays
