"""A run on disk: a header, and a line for each image that is appended when the image is done.

``run.json`` says what the lines belong to. Lines stand in ``images.N.jsonl``, one file for each
process, until the run is complete; then in ``images.jsonl``, in the order of the dataset. A line
that a kill cut off is dropped, and its image is done again.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from pixalign.export import write_bytes
from pixalign.metrics import THRESHOLDS, Tally

FORMAT = 1
HEADER, IMAGES, RESULT = "run.json", "images.jsonl", "result.json"
# What may differ when a run goes on; all else must be as it was.
_MAY_CHANGE = ("versions", "git", "device")


@dataclass(frozen=True, eq=False)
class ImageRow:
    """What is kept of one image: losses [N, T], small maps [N, h, w] and pixel counts, on the CPU.

    ``labels`` are its classes and ``area`` their shares of the picture. ``losses`` and ``maps``
    go by the settings under which they were measured, ``tallies`` by rows of the table.
    ``target`` is the class that a dial changes.
    """

    index: int
    key: str
    labels: tuple[int, ...]
    area: tuple[float, ...]
    group: str = ""
    target: int | None = None
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    maps: Mapping[str, Tensor] = field(default_factory=dict)
    tallies: Mapping[str, Tally] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON; the same row is the same text."""
        any_tally = next(iter(self.tallies.values()), None)
        record = {
            "index": self.index,
            "key": self.key,
            "labels": list(self.labels),
            "area": [round(share, 9) for share in self.area],
            "group": self.group,
            "target": self.target,
            "losses": {name: _packed(values.float()) for name, values in self.losses.items()},
            "maps": {name: _packed(values.half()) for name, values in self.maps.items()},
            "true": [] if any_tally is None else any_tally.true.tolist(),
            "counts": {name: _counts(tally) for name, tally in self.tallies.items()},
        }
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> ImageRow:
        """The row of a line."""
        record = json.loads(line)
        labels = tuple(record["labels"])
        true = torch.tensor(record["true"], dtype=torch.int64)
        return cls(
            index=record["index"],
            key=record["key"],
            labels=labels,
            area=tuple(record["area"]),
            group=record["group"],
            target=record["target"],
            losses={name: _unpacked(packed) for name, packed in record["losses"].items()},
            maps={name: _unpacked(packed) for name, packed in record["maps"].items()},
            tallies={
                name: _tally(packed, record["index"], labels, true)
                for name, packed in record["counts"].items()
            },
        )


@dataclass(frozen=True)
class Run:
    """The folder of a run and its header."""

    folder: Path
    header: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that is there, finished or not."""
        path = folder / HEADER
        if not path.is_file():
            raise FileNotFoundError(f"{str(folder)!r} holds no {HEADER}; allowed: a run's folder")
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
            number = header["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(path)!r} is damaged: {error}") from error
        if number != FORMAT:
            raise ValueError(f"{str(path)!r} has format {number!r}; allowed: {FORMAT}")
        return cls(folder, header)

    @classmethod
    def start(cls, folder: Path, header: Mapping[str, Any]) -> Run:
        """A new run, or the one that is there if it is the same."""
        plain = json.loads(json.dumps({"format": FORMAT, **header}))
        if not (folder / HEADER).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / HEADER, json.dumps(plain, indent=1) + "\n")
            return cls(folder, plain)
        there = cls.open(folder)
        for name in sorted(plain.keys() | there.header.keys()):
            where, old, new = _difference(name, there.header.get(name), plain.get(name))
            if name not in _MAY_CHANGE and old != new:
                raise ValueError(
                    f"{str(folder)!r} holds images of another run: {where} was {_short(old)}, is "
                    f"{_short(new)}; choose another --out or move that folder away"
                )
        return there

    def append(
        self,
        rows: Sequence[ImageRow],
        seconds: float,
        by_row: Mapping[str, float] | None = None,
        process: int = 0,
    ) -> None:
        """Write finished images in one go, and how long they took, in all and by row."""
        lines = "".join(row.to_line() + "\n" for row in rows)
        _append(self.folder / f"images.{process}.jsonl", lines)
        each = {name: round(spent, 4) for name, spent in (by_row or {}).items()}
        time = {"images": len(rows), "seconds": round(seconds, 4), "rows": each}
        _append(self.folder / f"times.{process}.jsonl", json.dumps(time) + "\n")

    def done(self) -> set[int]:
        """The numbers of the images that are finished."""
        return {json.loads(line)["index"] for line in self._lines()}

    def images(self) -> list[ImageRow]:
        """What is finished, in the order of the dataset."""
        return [ImageRow.from_line(line) for _, line in self._in_order()]

    @property
    def complete(self) -> bool:
        """Whether every image is there."""
        return len(self.done()) == int(self.header["images"])

    @property
    def seconds(self) -> float:
        """How long the finished images took, over all processes."""
        return float(sum(time["seconds"] for time in self._times()))

    @property
    def row_seconds(self) -> dict[str, float]:
        """How long each row of the table took, over all images."""
        total: dict[str, float] = {}
        for time in self._times():
            for name, spent in time.get("rows", {}).items():
                total[name] = total.get(name, 0.0) + spent
        return total

    def _times(self) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob("times.*.jsonl"))
        return [json.loads(line) for path in paths for line in _whole_lines(path)]

    def merge(self) -> None:
        """Put the lines of all processes into one file, in the order of the dataset."""
        parts = self._parts()
        if parts:
            text = "".join(line + "\n" for _, line in self._in_order())
            write_text(self.folder / IMAGES, text)
            for part in parts:
                part.unlink()

    def _in_order(self) -> list[tuple[int, str]]:
        found: dict[int, str] = {}
        for line in self._lines():
            found.setdefault(json.loads(line)["index"], line)
        return sorted(found.items())

    def _lines(self) -> Iterator[str]:
        whole = self.folder / IMAGES
        for path in [*([whole] if whole.is_file() else []), *self._parts()]:
            yield from _whole_lines(path)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("images.*.jsonl"))


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder of results, by name; the folder may be a run itself."""
    if (folder / HEADER).is_file():
        return [Run.open(folder)]
    runs = [Run.open(path.parent) for path in sorted(folder.glob(f"*/{HEADER}"))]
    if not runs:
        raise FileNotFoundError(
            f"{str(folder)!r} holds no results; allowed: what `pixalign bench run --out` made, "
            f"a folder of runs with a {HEADER} each"
        )
    return runs


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_bytes(path, text.encode())


def _append(path: Path, text: str) -> None:
    """Add whole lines, after whatever a kill left unfinished is cut off."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        while end and _byte_before(file, end) != b"\n":
            end -= 1
        file.truncate(end)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _byte_before(file: BinaryIO, place: int) -> bytes:
    file.seek(place - 1)
    return file.read(1)


def _whole_lines(path: Path) -> Iterator[str]:
    """The lines that are finished."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield line[:-1]


def _packed(values: Tensor) -> dict[str, Any]:
    array = values.cpu().contiguous().numpy()
    return {
        "type": str(array.dtype),
        "shape": list(array.shape),
        "data": base64.b85encode(zlib.compress(array.tobytes(), 6)).decode(),
    }


def _unpacked(packed: Mapping[str, Any]) -> Tensor:
    content = zlib.decompress(base64.b85decode(packed["data"]))
    array = np.frombuffer(content, dtype=packed["type"]).reshape(packed["shape"])
    return torch.from_numpy(array.copy())


def _counts(tally: Tally) -> dict[str, Any]:
    """hits and claimed [2, R, T], as changes from one threshold to the next."""
    both = torch.stack([tally.hits, tally.claimed]).to(torch.int32)
    return _packed(both.diff(dim=-1, prepend=torch.zeros_like(both[..., :1])))


def _tally(packed: Mapping[str, Any], index: int, labels: Sequence[int], true: Tensor) -> Tally:
    hits, claimed = _unpacked(packed).long().cumsum(-1)
    assert hits.shape == (len(labels) + 1, len(THRESHOLDS))
    numbers = torch.tensor([0, *(label + 1 for label in labels)])
    return Tally(torch.full_like(numbers, index), numbers, true, hits, claimed)


def _difference(where: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """The innermost place of the first difference, and what stands there; or both as they are."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(f"{where}.{key}", old.get(key), new.get(key)) for key in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    else:
        return where, old, new
    return next((_difference(*pair) for pair in pairs if pair[1] != pair[2]), (where, old, new))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
