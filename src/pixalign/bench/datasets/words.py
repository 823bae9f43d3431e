"""Which words mean a class: plurals by rule and by table, and aliases."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache

from pixalign.bench.datasets.sample import CLASSES

# Singular, plurals: what the rules do not know, and names that are plurals already. Nouns that do
# not change are their own plural.
_TABLE = """person people persons, child children, man men, woman women, foot feet, tooth teeth,
goose geese, mouse mice, louse lice, ox oxen, thief thieves, hoof hooves hoofs, quiz quizzes,
cactus cacti cactuses, octopus octopuses octopi, stomach stomachs, bus buses, shelf shelves shelfs,
ski skis, stair stairs, scissor scissors, fish fish fishes, sheep sheep, deer deer, moose moose,
bison bison, aircraft aircraft, series series, species species"""
_PLURALS = {one: tuple(many) for one, *many in map(str.split, _TABLE.split(","))}
_SINGULAR = {many: one for one, forms in _PLURALS.items() for many in forms}
# They end in "man" and are no men.
_NO_MEN = frozenset("human german roman norman ottoman talisman caiman shaman".split())


def plurals_of(name: str) -> tuple[str, ...]:
    """The plurals of a lower-case name: of its last word, or of the word before "of"."""
    head, of, rest = name.partition(" of ")
    before, space, word = head.rpartition(" ")
    return tuple(f"{before}{space}{many}{of}{rest}" for many in _of_word(word))


def _of_word(word: str) -> tuple[str, ...]:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("man") and word not in _NO_MEN:
        return (f"{word[:-2]}en",)
    if re.search(r"[^aeiou]y$", word):
        return (f"{word[:-1]}ies",)
    if re.search(r"(s|x|z|ch|sh)$", word):
        return (f"{word}es",)
    if re.search(r"([lr]f|[eo]af|ife)$", word):  # not "roof", "chef", "cafe"
        return (re.sub("fe?$", "ves", word), f"{word}s")
    if re.search(r"[^aeiou]o$", word):
        return (f"{word}es", f"{word}s")
    return (f"{word}s",)


def forms_of(name: str) -> tuple[str, ...]:
    """Everything that means a lower-case name: itself, then its plurals or its singular."""
    before, space, word = name.rpartition(" ")
    one = f"{before}{space}{_SINGULAR.get(word, word)}"
    return tuple(dict.fromkeys((name, one, *plurals_of(one))))


def aliases_of(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Of each of some lower-case names the words that mean the same, but no other of the names.

    Captions say "potted plant" where a list has one word. In singular or plural, as the name is.
    """
    taken = {form for name in names for form in forms_of(name)}
    known = [next((_aliases()[f] for f in forms_of(n) if f in _aliases()), ()) for n in names]
    return [tuple(alias for alias in aliases if alias not in taken) for aliases in known]


@cache
def _aliases() -> dict[str, Sequence[str]]:
    aliases: dict[str, Sequence[str]] = json.loads((CLASSES / "aliases.json").read_text("utf-8"))
    return aliases
