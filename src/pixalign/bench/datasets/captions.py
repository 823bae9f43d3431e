"""How often captions name each class: which words mean it, counted from files, kept as JSON."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pixalign.bench.datasets.files import bench_module
from pixalign.bench.datasets.sample import CLASSES
from pixalign.core.files import read_json
from pixalign.core.progress import Progress
from pixalign.text.prompts import as_phrases

COLUMNS = ("caption", "TEXT", "text")
FORMATS = (".txt", ".csv", ".tsv", ".txt.gz", ".csv.gz", ".tsv.gz", ".parquet")
_GAP = r"[\s-]++"  # between the words of a name: "hot dog", "hot-dog"
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

FileName = str | os.PathLike[str]


def count_captions(
    paths: FileName | Iterable[FileName],
    classes: Sequence[str],
    *,
    column: str | None = None,
    progress: bool = False,
) -> dict[str, int]:
    """In how many captions of the files each class stands, as whole words in any case.

    A caption counts once for a class, by its name, a plural or another word for it in
    classes/aliases.json. A name counts only where it is not inside a longer one of the list: "hot
    dog" is no dog, "hot dog, dog" is both. Files are .txt (a caption a line), .csv or .tsv (with a
    header; the latter without quotes), each also as .gz, and .parquet; their captions are in
    ``column``, else in the first of `COLUMNS` that is there. None is read as a whole.
    """
    names = [phrase.name for phrase in as_phrases(classes)]
    named, counts = Matcher(names), Counter[int]()
    files = [_known(Path(p)) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise ValueError("there are 0 files of captions; allowed: 1 or more")
    with Progress(0, "count captions", progress, "caption") as bar:
        for path, kind in files:
            for caption in _captions(path, kind, column):
                counts.update(named(caption))
                bar.advance(1)
    return {name: counts[index] for index, name in enumerate(names)}


class Matcher:
    """Finds the classes of a caption, by their names, their plurals and their aliases.

    ``pattern`` is one regular expression for all; ``owners`` are the classes of each written form.
    """

    def __init__(self, names: Sequence[str]) -> None:
        plain = [_plain(name) for name in names]
        self.owners: dict[str, tuple[int, ...]] = {}
        for index, (name, aliases) in enumerate(zip(plain, aliases_of(plain), strict=True)):
            forms = [_plain(form) for word in (name, *aliases) for form in forms_of(word)]
            for form in dict.fromkeys(forms):
                self.owners[form] = (*self.owners.get(form, ()), index)
        # Looks ahead, so that a match does not hide those that begin inside it.
        self.pattern = re.compile(rf"(?<!\w)(?=({_branches(self.owners)})(?!\w))")

    def __call__(self, caption: str) -> set[int]:
        """The classes that the caption names."""
        if not caption.isascii():
            caption = unicodedata.normalize("NFC", caption)
        named: set[int] = set()
        reach = 0
        for match in self.pattern.finditer(caption.lower()):
            if match.end(1) > reach:  # else it lies inside a longer name
                reach = match.end(1)
                named.update(self.owners.get(match[1]) or self.owners[_plain(match[1])])
        return named


def _plain(text: str) -> str:
    """Lower case, with single spaces for gaps and hyphens."""
    return " ".join(re.split(_GAP, unicodedata.normalize("NFC", text).lower().strip()))


def _branches(forms: Iterable[str]) -> str:
    """A pattern of the forms that tries the longest way first and each letter once."""
    rests: dict[str, list[str]] = {}
    for form in forms:
        rests.setdefault(form[:1], []).append(form[1:])
    may_end = "?" if rests.pop("", None) else ""
    ways = [
        (_GAP if letter == " " else re.escape(letter)) + _branches(rest)
        for letter, rest in rests.items()
    ]
    return f"(?:{'|'.join(ways)}){may_end}" if ways else ""


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


def _known(path: Path) -> tuple[Path, str]:
    """A file and its format; a missing one and an unknown format are errors."""
    if not path.is_file():
        what = "a folder" if path.exists() else "missing"
        raise FileNotFoundError(f"caption file {str(path)!r} is {what}")
    kinds = [kind for kind in FORMATS if path.name.lower().endswith(kind)]
    if not kinds:
        options = ", ".join(FORMATS)
        raise ValueError(f"caption file {str(path)!r} ends in {path.suffix!r}; allowed: {options}")
    return path, kinds[0]


def _captions(path: Path, kind: str, column: str | None) -> Iterator[str]:
    """The captions of one file, one after the other."""
    if kind == ".parquet":
        yield from _parquet(path, column)
        return
    opened: Any = gzip.open if kind.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            if ".txt" in kind:
                yield from file
                return
            tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
            rows = csv.reader(file, **(tabs if ".tsv" in kind else {}))
            header = next(rows, [])
            place = header.index(_column(header, path, column))
            yield from (row[place] for row in rows if len(row) > place)
    except (gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"caption file {str(path)!r} is damaged: {error}") from error


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    parquet = bench_module("pyarrow.parquet", path)
    arrow = bench_module("pyarrow", path)
    try:
        with parquet.ParquetFile(path) as file:
            name = _column(file.schema_arrow.names, path, column)
            for batch in file.iter_batches(columns=[name]):
                yield from (caption for caption in batch.column(0).to_pylist() if caption)
    except arrow.ArrowException as error:
        raise ValueError(f"caption file {str(path)!r} is damaged: {error}") from error


def _column(names: Sequence[str], path: Path, column: str | None) -> str:
    wanted = COLUMNS if column is None else (column,)
    known = [name for name in wanted if name in names]
    if not known:
        options = ", ".join(repr(name) for name in names)
        raise ValueError(
            f"caption file {str(path)!r} has no column {' or '.join(wanted)}; allowed: {options}"
        )
    return known[0]


def load_counts(path: FileName, classes: Sequence[str]) -> dict[str, int]:
    """The count of each class from JSON {name: count}; classes without one are an error.

    A name is looked up in any case, else as its plural or singular: public tables hold singulars
    only. The same holds for its aliases; of several words for a class the most frequent counts.
    """
    table, plain = _read_table(Path(path)), [_plain(name) for name in classes]
    counts, missing = {}, []
    for name, own, others in zip(classes, plain, aliases_of(plain), strict=True):
        first = [next(filter(table.__contains__, forms_of(word)), None) for word in (own, *others)]
        known = [table[form] for form in first if form is not None]
        if known:
            counts[name] = max(known)
        else:
            missing.append(f"{name} (or {', '.join(others)})" if others else name)
    if missing:
        raise ValueError(
            f"{str(path)!r} has no count of {'; '.join(missing)}. Add a line for each of them to a "
            "copy of the file, or count captions with `pixalign bench count`, which lists them all"
        )
    return counts


def _read_table(path: Path) -> dict[str, int]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} holds a {type(content).__name__}; allowed: name, count")
    for name, count in content.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(
                f"{str(path)!r} has the count {count!r} of {name!r}; allowed: integers from 0"
            )
    return {_plain(name): count for name, count in content.items()}
