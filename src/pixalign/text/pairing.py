"""Which words of two prompts belong together, as columns of their attention maps."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import torch
from torch import Tensor

from pixalign.core.protocols import TextReader
from pixalign.text.prompts import Span, check_prompt, occurrences_of
from pixalign.text.streams import TextStream

Columns = tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Neighbouring words of the source, of the target, or of both that correspond (indices)."""

    kind: Literal["equal", "replace", "insert", "delete"]
    source: range
    target: range


@dataclass(frozen=True)
class Change:
    """Words of the source and those of the target that took their place.

    ``span`` is where they stood in the source prompt, in characters. ``columns`` holds both sides'
    text columns, a pair for each text stream that reads them.
    """

    source: str
    target: str
    span: Span
    columns: tuple[tuple[Columns, Columns], ...]


@dataclass(frozen=True, eq=False)
class Pairing:
    """A source and a target prompt, column by column of attention maps with L of them.

    A source map times ``matrix`` float32 [L, L] has the target's columns; ``blend`` float32 [L] is
    1 where such a column exists and 0 where the target has a word of its own. ``factors`` float32
    [L] weigh the target's columns. ``differs`` says whether any word or weight does.
    """

    source: str
    target: str
    matrix: Tensor
    blend: Tensor
    factors: Tensor
    changes: tuple[Change, ...]
    differs: bool


def normal(text: str) -> str:
    """A prompt in Unicode's composed form; an empty one is refused."""
    check_prompt(text)
    return unicodedata.normalize("NFC", text)


def word_spans(text: str) -> list[Span]:
    """Where the words of a text stand, and its runs of punctuation, in characters."""
    return [match.span() for match in re.finditer(r"\w+(?:['’-]\w+)*|[^\w\s]+", text)]


def align_words(source: str, target: str) -> list[Group]:
    """The words of two texts in groups, in order; letters' case and "an" for "a" do not count."""
    first, second = (
        [re.sub("^an$", "a", text[slice(*span)].casefold()) for span in word_spans(text)]
        for text in (source, target)
    )
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    return [
        Group(kind, range(start, end), range(begin, stop))
        for kind, start, end, begin, stop in matcher.get_opcodes()
    ]


def pair(
    reader: TextReader,
    source: str,
    target: str,
    length: int,
    weights: Mapping[str, float] | None = None,
) -> Pairing:
    """Pair two prompts that are encoded to ``length`` columns; ``weights`` are of target words.

    Equal words correspond token by token. Each token of words that took others' place gets the
    mean of these others. The start token corresponds to the start token, and what comes behind the
    texts, end and padding, in order as far as both go.
    """
    source, target = normal(source), normal(target)
    groups = align_words(source, target)
    matrix, blend, factors = torch.eye(length), torch.ones(length), torch.ones(length)
    by_stream = []
    for streams, here in _streams(reader, length):
        matrix[here, here], blend[here] = 0, 0
        ours, theirs = (
            reader.columns(text, [(span,) for span in word_spans(text)], length, streams)
            for text in (source, target)
        )
        by_stream.append((ours, theirs))
        for mapped, columns in _mapped(groups, ours, theirs, here):
            matrix[:, list(columns)] = 0
            matrix[torch.tensor(mapped)[:, None], list(columns)] = 1 / len(mapped)
            blend[list(columns)] = 1
    for words, weight in (weights or {}).items():
        if not math.isfinite(weight):
            raise ValueError(f"the weight of {words!r} is {weight}; allowed: a finite number")
        factors[list(columns_of(reader, target, words, length))] = float(weight)
    changes = tuple(_changes(source, target, groups, by_stream))
    differs = any(group.kind != "equal" for group in groups) or bool((factors != 1).any())
    return Pairing(source, target, matrix, blend, factors, changes, differs)


def columns_of(reader: TextReader, text: str, words: str, length: int) -> Columns:
    """All columns of some words wherever they stand in a text; their absence is an error."""
    text = normal(text)
    spans = occurrences_of(unicodedata.normalize("NFC", words), text)
    (own,) = reader.columns(text, [spans], length) if spans else ((),)
    if not own:
        where = f"beyond the {length} tokens the model reads of" if spans else "not in"
        raise ValueError(f"{words!r} is {where} the prompt {text!r}")
    return own


def _streams(reader: TextReader, length: int) -> Iterator[tuple[list[TextStream], range]]:
    """The loaded text streams that share columns, and which these are."""
    loaded = [stream for stream in reader.streams if stream.loaded]
    starts = sorted({stream.start for stream in loaded})
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        here = [stream for stream in loaded if stream.start == start]
        read = max(stream.limit if stream.kind == "clip" else length for stream in here)
        yield here, range(start, min(end, start + read))


def _mapped(
    groups: Sequence[Group], ours: Sequence[Columns], theirs: Sequence[Columns], here: range
) -> Iterator[tuple[Columns, Columns]]:
    """(source columns, target columns): each of the latter gets the mean of the former."""
    (first, last), (start, end) = _text_ends(ours, here), _text_ends(theirs, here)
    before = zip(range(here.start, first), range(here.start, start), strict=False)
    behind = zip(range(last, here.stop), range(end, here.stop), strict=False)
    yield from (((column,), (other,)) for column, other in (*before, *behind))
    for group in groups:
        if group.kind == "equal":
            words = [(ours[w], theirs[o]) for w, o in zip(group.source, group.target, strict=True)]
        else:
            words = [(_together(ours, group.source), _together(theirs, group.target))]
        for mine, others in words:
            if group.kind == "equal" and len(mine) == len(others):  # token by token
                yield from (((m,), (o,)) for m, o in zip(mine, others, strict=True))
            elif mine and others:
                yield mine, others


def _text_ends(columns: Sequence[Columns], here: range) -> tuple[int, int]:
    """The first column of a text's words, and the one behind the last."""
    filled = [column for word in columns for column in word]
    return (min(filled), max(filled) + 1) if filled else (here.start, here.start)


def _together(columns: Sequence[Columns], words: Sequence[int]) -> Columns:
    """All columns of some words."""
    return tuple(sorted({column for word in words for column in columns[word]}))


def _changes(
    source: str,
    target: str,
    groups: Sequence[Group],
    by_stream: Sequence[Sequence[Sequence[Columns]]],
) -> Iterator[Change]:
    """Words that took others' place; punctuation takes no word's, and no word punctuation's."""
    for group in groups:
        words, others = _proper(source, group.source), _proper(target, group.target)
        if group.kind != "replace" or not words or not others:
            continue
        span, old = _extent(source, words)
        _, new = _extent(target, others)
        sides = [(_together(ours, words), _together(theirs, others)) for ours, theirs in by_stream]
        columns = tuple(side for side in sides if all(side))
        if not columns:
            raise ValueError(
                f"{old!r} or {new!r} is beyond what the model reads of its prompt; shorten the "
                "prompts"
            )
        yield Change(old, new, span, columns)


def _proper(text: str, words: Sequence[int]) -> list[int]:
    """Those of some words that are not punctuation."""
    spans = word_spans(text)
    return [word for word in words if re.match(r"\w", text[slice(*spans[word])])]


def _extent(text: str, words: Sequence[int]) -> tuple[Span, str]:
    """Where some words stand, from the first to the last, and what stands there."""
    spans = word_spans(text)
    start, end = spans[words[0]][0], spans[words[-1]][1]
    return (start, end), text[start:end]
