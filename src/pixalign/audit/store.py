"""Records of pictures, each kept whole as soon as it is made, so that a run can go on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pixalign.audit.records import Record
from pixalign.core.files import make_folder, read_json, unique_slug, write_json, write_text

ASKED = "asked.json"


class Kept:
    """The records of one subject, below an audit's folder."""

    def __init__(self, out: Path, name: str, asked: Mapping[str, Any]) -> None:
        """What was asked decides the numbers: a folder with other settings is refused."""
        self.folder = make_folder(out / "run" / unique_slug(name))
        path = self.folder / ASKED
        if path.is_file() and read_json(path) != asked:
            raise ValueError(
                f"{str(self.folder)!r} holds an audit of other pictures, weights or settings; "
                "choose another --out"
            )
        if not path.is_file():
            write_json(path, asked)

    def read(self, index: int, key: str) -> Record | None:
        """The record of a picture; None where it is not made, or has changed since."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            kept = read_json(self._path(index))
            record: Record = kept["record"]
            if record["key"] == key and kept["crc32"] == _checksum(record):
                return record
        return None

    def write(self, index: int, record: Record) -> None:
        """Keep the record of a picture."""
        kept = {"crc32": _checksum(record), "record": record}
        write_text(self._path(index), json.dumps(kept, ensure_ascii=False, allow_nan=False))

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.json"


def read_records(out: Path, name: str) -> list[Record]:
    """The records of a subject whose audit is finished, in order."""
    folder = out / "run" / unique_slug(name)
    return [read_json(path)["record"] for path in sorted(folder.glob("[0-9]*.json"))]


def _checksum(record: Record) -> int:
    return zlib.crc32(json.dumps(record).encode())
