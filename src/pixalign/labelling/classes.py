"""Which classes are looked for: from a file for all pictures, or listed picture by picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pixalign.core.checks import brief, check_seed
from pixalign.core.values import Phrase
from pixalign.text.prompts import as_phrases, typed_classes

_LISTS = (".csv", ".json")


@dataclass(frozen=True)
class PictureClasses:
    """The classes of one picture, and its seed where it has one of its own."""

    phrases: tuple[Phrase, ...]
    seed: int | None = None


Lists = Mapping[str, PictureClasses]  # by the pictures' keys


def read_classes(path: Path) -> tuple[Phrase, ...] | Lists:
    """Classes for all pictures, "dog" or "dog=a golden dog" a line; # begins a remark.

    A .csv with the columns image and classes, in which ";" stands between classes, and a .json
    [{"image": ..., "classes": [...]}] or {image: [...]} are lists by picture; both may have a seed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is no text in UTF-8: {error}") from error
    if path.suffix.lower() in _LISTS:
        rows = _csv_rows(text) if path.suffix.lower() == ".csv" else _json_rows(text, path)
        return _lists(rows, path)
    lines = (line.strip() for line in text.splitlines())
    phrases: list[Phrase] = []
    for line in lines:
        if line and not line.startswith("#"):
            phrases += typed_classes([line]) if "=" in line else [Phrase(line)]
    if not phrases:
        raise ValueError(f"{str(path)!r} names no class; write one a line")
    return as_phrases(phrases)


Row = tuple[str, Any]  # where it stands, and what it says


def _csv_rows(text: str) -> Iterator[Row]:
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        names = [name.strip() for name in (row.get("classes") or "").split(";")]
        seed = row.get("seed")
        if seed is not None and seed.isdecimal():
            row["seed"] = int(seed)
        yield f"line {number}", {**row, "classes": [name for name in names if name]}


def _json_rows(text: str, path: Path) -> Iterator[Row]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no JSON: {error}") from error
    if isinstance(given, dict):
        given = [{"image": image, "classes": names} for image, names in given.items()]
    if not isinstance(given, list):
        raise ValueError(f"{str(path)!r} holds {brief(given)}; allowed: a list or an object")
    for number, row in enumerate(given, 1):
        yield f"entry {number}", row


def _lists(rows: Iterator[Row], path: Path) -> Lists:
    found: dict[str, PictureClasses] = {}
    for where, row in rows:
        place = f"{where} of {str(path)!r}"
        if not isinstance(row, dict) or not isinstance(row.get("image"), str) or not row["image"]:
            raise ValueError(f"{place} names no image; allowed: image and classes")
        names, seed = row.get("classes"), row.get("seed")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{place}: classes are {brief(names)}; allowed: a list of texts")
        if row["image"] in found:
            raise ValueError(f"{place} names {row['image']!r} again")
        try:
            phrases = as_phrases([p for name in names for p in _one(name)]) if names else ()
            if seed not in (None, ""):
                check_seed(seed)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        found[row["image"]] = PictureClasses(phrases, None if seed == "" else seed)
    if not found:
        raise ValueError(f"{str(path)!r} lists no picture")
    return found


def _one(text: str) -> tuple[Phrase, ...]:
    return typed_classes([text]) if "=" in text else (Phrase(text),)
