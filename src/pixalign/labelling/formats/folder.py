"""What the formats share: the files of a folder, names that differ, JSON written as it comes."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pixalign.core.files import make_folder, sweep, write_bytes
from pixalign.core.wording import counted
from pixalign.pictures.polygons import Outlines


class FormatFolder:
    """The folder of a format. Files of an earlier run that this one did not write go at the end.

    Which those are stands in a list beside them. Nothing else is ever removed but what a kill left
    half written.
    """

    LIST = ".written-by-pixalign"

    def __init__(self, path: Path) -> None:
        self._path = make_folder(path)
        self._written: set[str] = set()
        self._stems: set[str] = set()

    def file(self, name: str) -> Path:
        """Where a file of that name, with forward slashes, is to be written."""
        self._written.add(name)
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def stem(self, key: str) -> str:
        """A picture's key without its suffix; with it where another picture has that name."""
        whole = PurePosixPath(key)
        stem = str(whole.with_suffix(""))
        if stem.casefold() in self._stems:
            stem = key
        while stem.casefold() in self._stems:
            stem += "_"
        self._stems.add(stem.casefold())
        return stem

    def add_picture(self, name: str, picture: Path) -> None:
        """A picture under another name: a second name of the same file if possible, else a copy."""
        target = self.file(name)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            try:
                os.link(picture.resolve(), temporary)
            except OSError:
                shutil.copyfile(picture, temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)  # two names of one file are left by `replace`

    def finish(self) -> None:
        """Remove what an earlier run wrote and this one did not, or left unfinished."""
        listed = self._path / self.LIST
        earlier: set[str] = set()
        with suppress(FileNotFoundError):
            earlier = set(os.fsdecode(listed.read_bytes()).split("\0"))
        for name in earlier - self._written - {""}:
            stale = self._path / name
            if ".." not in stale.parts and stale.is_relative_to(self._path):
                stale.unlink(missing_ok=True)
        write_bytes(listed, os.fsencode("\0".join(sorted(self._written))))
        for folder in {(self._path / name).parent for name in (*self._written, self.LIST)}:
            sweep(folder, older=0)


def json_bytes(values: Any) -> bytes:
    """One line of ASCII."""
    return json.dumps(values, allow_nan=False).encode("ascii")


def write_items(file: IO[bytes], items: Iterable[Any]) -> None:
    """The items of a JSON list, one a line, each written as soon as it is there."""
    for index, item in enumerate(items):
        file.write(b",\n" if index else b"\n")
        file.write(json_bytes(item))


@dataclass
class HoleCount:
    """What a format without holes fills."""

    objects: int = 0
    holes: int = 0
    pixels: int = 0

    def add(self, outlined: Outlines) -> None:
        """One more object."""
        self.objects += bool(outlined.holes)
        self.holes += outlined.holes
        self.pixels += outlined.hole_pixels

    def said(self, what: str) -> list[str]:
        """A sentence, unless nothing was filled."""
        if not self.holes:
            return []
        where = f"in {counted(self.objects, 'object')}, {counted(self.pixels, 'pixel')}"
        verb = "is" if self.holes == 1 else "are"
        return [f"{what} have no holes: {self.holes} {where}, {verb} filled"]
