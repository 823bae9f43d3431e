"""A run on disk: a header, and a line for each image that is appended when the image is done.

``run.json`` says what the lines belong to. Lines stand in ``images.N.jsonl``, one file for each
process, until the run is complete; then in ``images.jsonl``, in the order of the dataset. A line
that a kill cut off is dropped, and its image is done again. ``run.lock`` is held while a command
writes.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.bench.datasets.sample import Dataset
from pixalign.bench.metrics import THRESHOLDS, Tally
from pixalign.core.changes import check_unchanged
from pixalign.core.files import read_json, write_text, writing_whole

FORMAT = 4
HEADER, IMAGES, RESULT = "run.json", "images.jsonl", "result.json"
# What the numbers of a run depend on: it must be as it was when the run goes on.
_SAME = (
    "format", "digest", "dataset", "split", "limit", "images", "masks", "pictures", "classes",
    "seed", "model",
)  # fmt: skip
_OF_THE_COUNT = ("limit", "images", "pictures")
_SAME_IN_ROWS = ("method", "config", "scores", "exponents", "evidence", "options")
_OF_THE_START = ("versions", "git", "device")  # told as they were when the run began
_OF_IMAGES = ("index", "key", "labels", "area", "group", "target")
_OF_CLASSES = ("visible", "elbo", "activation")
_PROOF = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n$')  # how it ends
_INDEX = re.compile(rb'\{"index":(\d+),')  # how a line begins


@dataclass(frozen=True, eq=False)
class ImageRow:
    """What is kept of one image.

    ``labels`` are its classes, ``area`` their shares of the picture, ``visible`` the shares of
    them that nothing covers, where that is known. ``tallies`` are counts of pixels by rows of the
    table, one for each draw of a row's exponents. ``elbo`` and ``activation`` [N], a map's peak
    over its mean, are those of the first row that has any. ``target`` is the class that a dial
    changes.
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
    tallies: Mapping[str, tuple[Tally, ...]] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON; the same row is the same text."""
        true = [tally.true.tolist() for drawn in self.tallies.values() for tally in drawn]
        record = {
            **{name: getattr(self, name) for name in _OF_IMAGES},
            "area": [round(share, 9) for share in self.area],
            **{name: _rounded(getattr(self, name)) for name in _OF_CLASSES},
            "true": true[0] if true else [],
            "counts": {name: _counts(drawn) for name, drawn in self.tallies.items()},
        }
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> ImageRow:
        """The row of a line."""
        record = json.loads(line)
        index, true, counts = record["index"], record.pop("true"), record.pop("counts")
        for name in ("labels", "area", *_OF_CLASSES):
            record[name] = None if record[name] is None else tuple(record[name])
        labels = torch.tensor([0, *(label + 1 for label in record["labels"])])
        pairs = torch.full_like(labels, index), labels, torch.tensor(true, dtype=torch.int64)
        tallies = {name: _tallies(packed, *pairs) for name, packed in counts.items()}
        return cls(**record, tallies=tallies)


@dataclass(frozen=True)
class Run:
    """The folder of a run and its header."""

    folder: Path
    header: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that is there, finished or not."""
        path = folder / HEADER
        try:
            header = read_json(path)
            number = header["format"]
            missing = [key for key in (*_SAME, *_OF_THE_START, "rows") if key not in header]
            if number == FORMAT and (missing or not all("name" in row for row in header["rows"])):
                raise ValueError(f"it lacks {', '.join(missing) or 'the names of rows'}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(path)!r} is damaged: {error}") from error
        if number != FORMAT:
            raise ValueError(f"{str(path)!r} has format {number!r}; allowed: {FORMAT}")
        return cls(folder, header)

    @classmethod
    def start(
        cls,
        folder: Path,
        header: Mapping[str, Any],
        dataset: Dataset | None = None,
    ) -> Run:
        """A new run, or the one that is there if its numbers mean the same; wording may change.

        More images are the same run if those that it had are those that a lower limit of the
        ``dataset`` gives; they get the places that they have in it now.
        """
        plain = json.loads(json.dumps({"format": FORMAT, **header}))
        there = cls.open(folder).header if (folder / HEADER).is_file() else {}
        if there:
            kept, same = there["images"], dict(plain)
            grown = (
                dataset is not None
                and kept < plain["images"]
                and dataset.digest(kept) == there["pictures"]
            )
            if grown:
                same |= {name: there[name] for name in _OF_THE_COUNT}
            if there["model"].get("weights") is None:  # of older versions
                same["model"] = same["model"] | {"weights": None}
            check_unchanged(_deciding(there), _deciding(same), folder, "images")
            if dataset is not None and grown and list(dataset.first(kept)) != list(range(kept)):
                cls(folder, there).merge(dataset.keys)
            plain |= {name: there.get(name) for name in _OF_THE_START}
        if plain != there:  # words, counts: the summary reads them, the images do not
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / HEADER, json.dumps(plain, indent=1) + "\n")
        return cls(folder, plain)

    def append(
        self,
        rows: Sequence[ImageRow],
        seconds: float,
        by_row: Mapping[str, float] | None = None,
        process: int = 0,
    ) -> None:
        """Write finished images in one go, and how long they took, in all and by row."""
        lines = "".join(_checked(row.to_line()) for row in rows)
        _append(self.folder / f"images.{process}.jsonl", lines)
        each = {name: round(spent, 4) for name, spent in (by_row or {}).items()}
        time = {"images": len(rows), "seconds": round(seconds, 4), "rows": each}
        _append(self.folder / f"times.{process}.jsonl", json.dumps(time) + "\n")

    def done(self) -> set[int]:
        """The numbers of the images that are finished."""
        return set(self._places())

    def images(self) -> Iterator[ImageRow]:
        """What is finished, one by one in the order of the dataset."""
        for line in self._in_order():
            try:
                yield ImageRow.from_line(_PROOF.sub(b"}", line))
            except (ValueError, KeyError, TypeError, RuntimeError, AssertionError, zlib.error) as e:
                what = f"{str(self.folder)!r} is damaged: the line of an image cannot be read"
                raise ValueError(f"{what} ({e}); run the same command again") from e

    @property
    def seconds(self) -> float:
        """How long the finished images took, over all processes."""
        return float(sum(time["seconds"] for time in self._times()))

    @property
    def row_seconds(self) -> dict[str, float]:
        """How long each row of the table took, over all images."""
        total: Counter[str] = Counter()
        for time in self._times():
            total.update(time.get("rows", {}))
        return dict(total)

    def _times(self) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob("times.*.jsonl"))
        times = []
        for line in (line for path in paths for line in _whole_lines(path)):
            with suppress(ValueError):  # a damaged one is of the clock alone
                times.append(json.loads(line))
        return [time for time in times if isinstance(time, dict) and "seconds" in time]

    def merge(self, keys: Sequence[str] = ()) -> None:
        """Put the lines of all processes into one file, in the order of the dataset.

        With the ``keys`` of another order, images get the numbers that they have there.
        """
        parts, numbers = self._parts(), {key: number for number, key in enumerate(keys)}
        if parts or (numbers and (self.folder / IMAGES).is_file()):
            with writing_whole(self.folder / IMAGES) as file:
                file.writelines(self._in_order(numbers))
            for part in parts:
                part.unlink()

    def _in_order(self, numbers: Mapping[str, int] | None = None) -> Iterator[bytes]:
        """The lines of all files, one at a time; in the order of other numbers, with these."""
        places = sorted(self._places(numbers).items())
        with ExitStack() as stack:
            paths = {path for _, (path, _) in places}
            files = {path: stack.enter_context(path.open("rb")) for path in paths}
            for number, (path, start) in places:
                files[path].seek(start)
                line = files[path].readline()
                yield _numbered(line, number) if numbers else line

    def _places(self, numbers: Mapping[str, int] | None = None) -> dict[int, tuple[Path, int]]:
        """Of each image the file that has it, and where its line starts; with ``numbers`` by key.

        Lines that have changed since they were written do not count: their images are done again.
        """
        places: dict[int, tuple[Path, int]] = {}
        for path in filter(Path.is_file, (self.folder / IMAGES, *self._parts())):
            start = 0
            for line in _whole_lines(path):
                begins = _INDEX.match(line)
                if begins is not None and _is_whole(line):
                    number = numbers[json.loads(line)["key"]] if numbers else int(begins[1])
                    places.setdefault(number, (path, start))
                else:
                    warnings.warn(
                        f"{str(path)!r} is damaged: a line has changed; its image is done again",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                start += len(line)
        return places

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("images.*.jsonl"))


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder of results, by name; the folder may be a run itself."""
    itself = (folder / HEADER).is_file()
    folders = [folder] if itself else [path.parent for path in sorted(folder.glob(f"*/{HEADER}"))]
    if not folders:
        raise FileNotFoundError(
            f"{str(folder)!r} holds no results; allowed: what `pixalign bench run --out` made, "
            f"a folder of runs with a {HEADER} each"
        )
    return [Run.open(path) for path in folders]


def _append(path: Path, text: str) -> None:
    """Add whole lines, after whatever a kill left unfinished is cut off."""
    with path.open("ab+") as file:
        if file.tell():  # what is empty cannot be mapped
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                whole = content.rfind(b"\n") + 1
            file.truncate(whole)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The lines that are finished, each with its end."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _checked(line: str) -> str:
    """A line of JSON with its own checksum at its end."""
    return f'{line[:-1]},"crc32":"{zlib.crc32(line.encode()):08x}"}}\n'


def _numbered(line: bytes, number: int) -> bytes:
    """A line of an image under another number."""
    plain = _INDEX.sub(b'{"index":%d,' % number, _PROOF.sub(b"}", line)).rstrip(b"\n")
    return _checked(plain.decode()).encode()


def _is_whole(line: bytes) -> bool:
    """Whether a line is as it was written; those of older versions end without a checksum."""
    proof = _PROOF.search(line)
    if proof is None:
        return line.endswith(b"}}\n")
    return int(proof[1], 16) == zlib.crc32(_PROOF.sub(b"}", line))


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [float(f"{value:.9g}") for value in values]


def _counts(drawn: Sequence[Tally]) -> dict[str, Any]:
    """hits and claimed [D, 2, R, T], as changes from one threshold to the next."""
    pixels = torch.stack([torch.stack([tally.hits, tally.claimed]) for tally in drawn])
    changes = pixels.diff(dim=-1, prepend=torch.zeros_like(pixels[..., :1])).int().numpy()
    packed = base64.b85encode(zlib.compress(changes.tobytes(), 6)).decode()
    return {"shape": list(changes.shape), "data": packed}


def _tallies(
    packed: Mapping[str, Any], image: Tensor, label: Tensor, true: Tensor
) -> tuple[Tally, ...]:
    content = zlib.decompress(base64.b85decode(packed["data"]))
    changes = np.frombuffer(content, dtype=np.int32).reshape(packed["shape"])
    pixels = torch.from_numpy(changes.astype(np.int64)).cumsum(-1)
    assert pixels.shape[1:] == (2, len(label), len(THRESHOLDS))
    return tuple(Tally(image, label, true, hits, claimed) for hits, claimed in pixels)


def _deciding(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers depend on."""
    rows = {row["name"]: {key: row.get(key) for key in _SAME_IN_ROWS} for row in header["rows"]}
    return {name: header.get(name) for name in _SAME} | {"rows": rows}
