"""What there is to label: pictures by their content, in units that are labelled together."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pixalign.alignment.request import SizesSeen
from pixalign.core.ahead import read_ahead
from pixalign.core.files import read_text, readable, write_text
from pixalign.core.progress import Progress
from pixalign.core.values import Phrase, Size
from pixalign.pictures.reading import SUFFIXES, upright_size

UNIT = 16  # pictures, at least, that are labelled together and stored in one shard
_PIXELS = 2**26  # of them in all, unless it is one picture
_UNKNOWN = (0, 0)


@dataclass(frozen=True)
class Picture:
    """A file: its path below the folder, SHA-256, upright size, bytes and time of change in ns.

    The size is (0, 0) where the file cannot be read; labelling it will say why.
    """

    key: str
    path: Path
    digest: str
    size: Size
    bytes: int
    modified: int

    def changed(self) -> bool:
        """Whether the file has been written since, or is gone."""
        try:
            about = self.path.stat()
        except OSError:
            return True
        return (about.st_size, about.st_mtime_ns) != (self.bytes, self.modified)


@dataclass(frozen=True)
class Item:
    """A picture with the classes to look for, and the seed of its noise."""

    picture: Picture
    phrases: tuple[Phrase, ...]
    seed: int

    @property
    def id(self) -> str:
        """The same for the same content, classes and seed, wherever the file is."""
        what = self.picture.digest, [(p.name, p.phrase) for p in self.phrases], self.seed
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Unit:
    """Items that go through the network together."""

    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        """The same for the same items."""
        return hashlib.sha256("".join(item.id for item in self.items).encode()).hexdigest()[:16]


def units(
    items: Iterable[Item], sizes: SizesSeen, resize: str, together: int, done: Container[str]
) -> list[Unit]:
    """What is not done, in units of at most so many pictures that the model sees at one size.

    Which pictures go together does not depend on what is done, so that a run that was stopped
    ends like one that was not. Items of one content are labelled once.
    """
    unique: dict[str, Item] = {}
    for item in items:
        unique.setdefault(item.id, item)
    alike: dict[Size, list[Item]] = {}
    for item in unique.values():
        size = item.picture.size
        seen = size if size == _UNKNOWN else sizes.size(size, resize)
        alike.setdefault(seen, []).append(item)
    whole = [unit for group in alike.values() for unit in _cut(group, together)]
    todo = (tuple(item for item in unit if item.id not in done) for unit in whole)
    return [Unit(left) for left in todo if left]


def _cut(items: Sequence[Item], together: int) -> list[list[Item]]:
    parts: list[list[Item]] = []
    pixels = 0
    for item in items:
        height, width = item.picture.size
        if not parts or len(parts[-1]) == together or pixels + height * width > _PIXELS:
            parts.append([])
            pixels = 0
        parts[-1].append(item)
        pixels += height * width
    return parts


def find_pictures(folder: Path, besides: Path) -> dict[str, Path]:
    """The pictures below a folder by their keys, in the order of these.

    What is hidden, and what lies in the folder ``besides``, is left out.
    """
    if not folder.is_dir():
        what = "a file" if folder.exists() else "missing"
        raise FileNotFoundError(f"folder {str(folder)!r} is {what}; name a folder of pictures")
    if folder.resolve() == besides.resolve():
        raise ValueError(f"folder {str(folder)!r} is the output too; choose another --out")
    found = {}
    for place, folders, files in os.walk(folder):
        here = Path(place)
        kept = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in kept if (here / name).resolve() != besides.resolve()]
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                found[readable((here / name).relative_to(folder).as_posix())] = here / name
    if not found:
        raise FileNotFoundError(f"folder {str(folder)!r} holds no picture: {', '.join(SUFFIXES)}")
    return dict(sorted(found.items()))


def read_pictures(paths: dict[str, Path], manifest: Path, show: bool) -> list[Picture]:
    """What is known of files; those that an earlier ``manifest`` knows are not read again."""
    known = _known(manifest)

    def about(entry: tuple[str, Path]) -> Picture:
        key, path = entry
        before = known.get(key)
        if before is None or before.size == _UNKNOWN or before.path != path or before.changed():
            return _read(key, path)
        return before

    pictures = []
    with (
        Progress(len(paths), "reading", show, "picture") as progress,
        read_ahead(about, paths.items(), most=64) as found,
    ):
        for picture in found:
            pictures.append(picture)
            progress.advance(1)
    records = ({**asdict(picture), "path": os.fsdecode(picture.path)} for picture in pictures)
    lines = (json.dumps({**record, "crc32": _checksum(record)}) + "\n" for record in records)
    write_text(manifest, "".join(lines))
    return pictures


def _read(key: str, path: Path) -> Picture:
    try:
        about = path.stat()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with suppress(OSError, ValueError):
            return Picture(key, path, digest, upright_size(path), about.st_size, about.st_mtime_ns)
        return Picture(key, path, digest, _UNKNOWN, about.st_size, about.st_mtime_ns)
    except OSError:
        return Picture(key, path, f"unread {key}", _UNKNOWN, 0, 0)


def _known(manifest: Path) -> dict[str, Picture]:
    """Pictures of an earlier run, up to the first line that has changed since it was written."""
    known = {}
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        for line in read_text(manifest).splitlines():
            record = json.loads(line)
            if record.pop("crc32") != _checksum(record):
                break
            height, width = record["size"]
            record |= {"path": Path(record["path"]), "size": (height, width)}
            known[record["key"]] = Picture(**record)
    return known


def _checksum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record).encode())
