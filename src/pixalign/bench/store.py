"""A run on disk: a header, and a line for each image that is appended when the image is done.

``run.json`` says what the lines belong to. Lines stand in ``images.N.jsonl``, one file for each
process, until the run is complete; then in ``images.jsonl``, in the order of the dataset. A line
that a kill cut off is dropped, and its image is done again. ``run.lock`` is held while a command
writes.
"""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from pixalign.bench.metrics import THRESHOLDS, Tally
from pixalign.core.files import write_bytes, writing_whole

FORMAT = 3
HEADER, IMAGES, RESULT, LOCK = "run.json", "images.jsonl", "result.json", "run.lock"
# What the numbers of a run depend on: it must be as it was when the run goes on.
_SAME = (
    "format", "digest", "dataset", "split", "limit", "images", "masks", "pictures", "classes",
    "seed", "model",
)  # fmt: skip
_SAME_IN_ROWS = ("method", "config", "scores", "exponents", "options")
_OF_THE_START = ("versions", "git", "device")  # told as they were when the run began
_OF_PAIRS = ("visible", "elbo", "activation")
_INDEX = re.compile(rb'\{"index":(\d+),')  # how a line begins
_BLOCK = 2**16


@dataclass(frozen=True, eq=False)
class ImageRow:
    """What is kept of one image: losses [N, T], small maps [N, h, w] and pixel counts, on the CPU.

    ``labels`` are its classes, ``area`` their shares of the picture, ``visible`` the shares of
    them that nothing covers, where that is known. ``losses`` and ``maps`` go by the settings under
    which they were measured, ``tallies`` by rows of the table: one for each draw of a row's
    exponents. ``elbo`` and ``activation`` [N], a map's peak over its mean, are those of the first
    row that has any. ``target`` is the class that a dial changes.
    """

    index: int
    key: str
    labels: tuple[int, ...]
    area: tuple[float, ...]
    group: str = ""
    target: int | None = None
    visible: tuple[float, ...] | None = None
    elbo: tuple[float, ...] | None = None
    activation: tuple[float, ...] | None = None
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    maps: Mapping[str, Tensor] = field(default_factory=dict)
    tallies: Mapping[str, tuple[Tally, ...]] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON; the same row is the same text."""
        any_tally = next((tally for drawn in self.tallies.values() for tally in drawn), None)
        record = {
            "index": self.index,
            "key": self.key,
            "labels": list(self.labels),
            "area": [round(share, 9) for share in self.area],
            "group": self.group,
            "target": self.target,
            **{name: _rounded(getattr(self, name)) for name in _OF_PAIRS},
            "losses": {name: _packed(values.float()) for name, values in self.losses.items()},
            "maps": {name: _packed(values.half()) for name, values in self.maps.items()},
            "true": [] if any_tally is None else any_tally.true.tolist(),
            "counts": {name: _counts(drawn) for name, drawn in self.tallies.items()},
        }
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes, whole: bool = True) -> ImageRow:
        """The row of a line; unless it is wanted whole, without losses and maps."""
        record = json.loads(line)
        if not whole:
            record |= {"losses": {}, "maps": {}}
        labels = tuple(record["labels"])
        true = torch.tensor(record["true"], dtype=torch.int64)
        return cls(
            index=record["index"],
            key=record["key"],
            labels=labels,
            area=tuple(record["area"]),
            group=record["group"],
            target=record["target"],
            **{name: record[name] and tuple(record[name]) for name in _OF_PAIRS},
            losses={name: _unpacked(packed) for name, packed in record["losses"].items()},
            maps={name: _unpacked(packed) for name, packed in record["maps"].items()},
            tallies={
                name: _tallies(packed, record["index"], labels, true)
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
        """A new run, or the one that is there if its numbers mean the same; wording may change."""
        plain = json.loads(json.dumps({"format": FORMAT, **header}))
        if not (folder / HEADER).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / HEADER, json.dumps(plain, indent=1) + "\n")
            return cls(folder, plain)
        there = cls.open(folder)
        _check_same(folder, there.header, plain)
        kept = plain | {name: there.header.get(name) for name in _OF_THE_START}
        if kept != there.header:  # words, counts: the summary reads them, the images do not
            write_text(folder / HEADER, json.dumps(kept, indent=1) + "\n")
        return cls(folder, kept)

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
        return set(self._places())

    def images(self, whole: bool = False) -> Iterator[ImageRow]:
        """What is finished, one by one in the order of the dataset; losses and maps if whole."""
        for line in self._in_order():
            yield ImageRow.from_line(line, whole)

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
            with writing_whole(self.folder / IMAGES) as file:
                file.writelines(self._in_order())
            for part in parts:
                part.unlink()

    def _in_order(self) -> Iterator[bytes]:
        """The lines of all files, one at a time."""
        places = sorted(self._places().items())
        with ExitStack() as stack:
            paths = {path for _, (path, _) in places}
            files = {path: stack.enter_context(path.open("rb")) for path in paths}
            for _, (path, start) in places:
                files[path].seek(start)
                yield files[path].readline()

    def _places(self) -> dict[int, tuple[Path, int]]:
        """Of each image the file that has it, and where its line starts."""
        places: dict[int, tuple[Path, int]] = {}
        whole = self.folder / IMAGES
        for path in [*([whole] if whole.is_file() else []), *self._parts()]:
            start = 0
            for line in _whole_lines(path):
                begins = _INDEX.match(line)
                if begins is None:
                    raise ValueError(f"{str(path)!r} is damaged: a line is of no image")
                places.setdefault(int(begins[1]), (path, start))
                start += len(line)
        return places

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


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold a run's folder, which is made; it is an error if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"another process is writing to {str(folder)!r}; wait until it is done, or choose "
            "another --out"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _append(path: Path, text: str) -> None:
    """Add whole lines, after whatever a kill left unfinished is cut off."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        whole = _end_of_lines(file, end)
        if whole < end:
            file.truncate(whole)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _end_of_lines(file: IO[bytes], end: int) -> int:
    """Where the last whole line ends."""
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The lines that are finished, each with its end."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


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


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [float(f"{value:.9g}") for value in values]


def _counts(drawn: Sequence[Tally]) -> dict[str, Any]:
    """hits and claimed [D, 2, R, T], as changes from one threshold to the next."""
    pixels = torch.stack([torch.stack([tally.hits, tally.claimed]) for tally in drawn])
    pixels = pixels.to(torch.int32)
    return _packed(pixels.diff(dim=-1, prepend=torch.zeros_like(pixels[..., :1])))


def _tallies(
    packed: Mapping[str, Any], index: int, labels: Sequence[int], true: Tensor
) -> tuple[Tally, ...]:
    pixels = _unpacked(packed).long().cumsum(-1)
    assert pixels.shape[1:] == (2, len(labels) + 1, len(THRESHOLDS))
    numbers = torch.tensor([0, *(label + 1 for label in labels)])
    images = torch.full_like(numbers, index)
    return tuple(Tally(images, numbers, true, hits, claimed) for hits, claimed in pixels)


def _check_same(folder: Path, there: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the images of both headers have the same numbers."""

    def compared(header: Mapping[str, Any]) -> dict[str, Any]:
        rows = {row["name"]: {key: row.get(key) for key in _SAME_IN_ROWS} for row in header["rows"]}
        return {name: header.get(name) for name in _SAME} | {"rows": rows}

    old, now = compared(there), compared(new)
    for name, value in now.items():
        where, was, is_ = _difference(name, old[name], value)
        if was != is_:
            raise ValueError(
                f"{str(folder)!r} holds images of another run: {where} was {_short(was)}, is "
                f"{_short(is_)}; choose another --out or move that folder away"
            )


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
