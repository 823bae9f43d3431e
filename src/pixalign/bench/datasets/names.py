"""Other words for the names of classes: captions say "potted plant" where a list has one word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache

from pixalign.bench.datasets.plurals import forms_of
from pixalign.bench.datasets.sample import CLASSES

ALIASES = CLASSES / "aliases.json"


def aliases_of(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Of each of some lower-case names the words that mean the same, but no other of the names."""
    taken = {form for name in names for form in forms_of(name)}
    return [tuple(alias for alias in _of_one(name) if alias not in taken) for name in names]


def _of_one(name: str) -> tuple[str, ...]:
    """In singular or plural, as the name is."""
    return next((_table()[form] for form in forms_of(name) if form in _table()), ())


@cache
def _table() -> Mapping[str, tuple[str, ...]]:
    entries = json.loads(ALIASES.read_text(encoding="utf-8"))
    return {name: tuple(words) for name, words in entries.items()}
