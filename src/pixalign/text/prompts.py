"""From class names to prompts, and from words to text columns, without ever guessing.

A prompt that this module composes knows where each class stands because it put it there; in a
given caption, classes are found as whole words, longest first. Characters become tokens through
the tokenizer's own offsets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from pixalign.core.checks import brief
from pixalign.core.values import Phrase

Span = tuple[int, int]  # [start, end) in characters
MOST_LETTERS = 20_000  # of a prompt: more than any text encoder reads
Classes = Iterable[str | Phrase] | Mapping[str, str]  # a mapping is {name: phrase}

# What a phrase's first noun group ends before: prepositions, conjunctions, relatives, verbs.
_AFTER_THE_HEAD = frozenset(
    "with of in on at by for from under over behind beside near without to between inside outside "
    "into onto against among around above below across along beyond through next and or but that "
    "which who whose where while as is are was were has have".split()
)
_DETERMINERS = frozenset(
    "a an the this these that those some any every each his her its their my your our no".split()
)
# Nouns that look like participles ("a tall building with windows").
_NOUNS_IN_ING_OR_ED = frozenset(
    "building ceiling painting drawing railing awning clothing ring king wing string swing thing "
    "wedding morning evening pudding dumpling duckling earring sibling being crossing bed shed "
    "sled seed weed reed bread steed moped shred head thread".split()
)


@dataclass(frozen=True)
class Prompt:
    """A text and, for each of ``classes`` (indices), the character spans where it stands."""

    text: str
    classes: tuple[int, ...]
    spans: tuple[tuple[Span, ...], ...]


def cleaned(text: str) -> str:
    """Unicode-composed, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def check_text(what: str, text: str) -> None:
    """Refuse what no tokenizer reads: control characters, and bytes that were no UTF-8."""
    if not isinstance(text, str):
        raise ValueError(f"{what} is {brief(text)}; allowed: a text")
    for sign in text:
        if unicodedata.category(sign) in ("Cc", "Cs") and not sign.isspace():
            raise ValueError(f"{what} is {brief(text)}, which holds the unreadable {sign!r}")


def check_prompt(text: str) -> None:
    """Refuse a prompt without a word, or with what no tokenizer reads."""
    check_text("prompt", text)
    if not text.strip():
        raise ValueError(f"prompt is {text!r}; it needs at least one word")
    if len(text) > MOST_LETTERS:
        raise ValueError(f"prompt {brief(text)} has {len(text)} letters; allowed: {MOST_LETTERS}")


def as_phrases(classes: Classes, one: str = "class", many: str = "classes") -> tuple[Phrase, ...]:
    """Clean classes into phrases; empty, duplicate and unreadable ones are refused by name."""
    if isinstance(classes, str | Phrase) or not isinstance(classes, Iterable):
        raise ValueError(f"{many} is {classes!r}; give a list of {many}, such as ['dog', 'cat']")
    if isinstance(classes, Mapping):
        classes = [Phrase(*pair) for pair in classes.items()]
    given = list(classes)
    phrases: dict[str, Phrase] = {}  # by name, in any case
    for position, item in enumerate(given, 1):
        if not isinstance(item, str | Phrase):
            raise ValueError(f"{one} {position} is {item!r}; allowed: a string or a Phrase")
        whole = Phrase(item) if isinstance(item, str) else item
        for text in (whole.name, whole.phrase):
            check_text(f"{one} {position}", text)
        phrase = Phrase(cleaned(whole.name), cleaned(whole.phrase))
        if not phrase.name:
            raise ValueError(f"{one} {position} of {len(given)} is empty")
        if phrases.setdefault(phrase.name.casefold(), phrase) is not phrase:
            raise ValueError(f"{one} {phrase.name!r} is given twice")
    if not phrases:
        raise ValueError(f"no {many} given; name at least one")
    return tuple(phrases.values())


def typed_classes(texts: Iterable[str]) -> tuple[Phrase, ...]:
    """Classes as they are typed: "dog", "dog,cat" or "dog=a golden dog", which may hold commas."""
    phrases: list[Phrase] = []
    for text in texts:
        name, separator, phrase = text.partition("=")
        if separator and not phrase.strip():
            raise ValueError(f"class {text!r} has nothing after '='")
        phrases += [Phrase(name, phrase)] if separator else map(Phrase, text.split(","))
    return as_phrases(phrases)


def canonical_order(phrases: Sequence[Phrase]) -> list[int]:
    """Indices of the phrases sorted by name: the same for every order of the classes."""
    return sorted(range(len(phrases)), key=lambda i: (phrases[i].name.casefold(), phrases[i].name))


def compose(
    phrases: Sequence[Phrase], classes: Sequence[int], template: str, whole: bool = False
) -> Prompt:
    """ "a photo of c1, c2": the template filled with the phrases of those class indices."""
    text, rest = template.split("{}")
    spans: list[tuple[Span, ...]] = []
    for count, index in enumerate(classes):
        text += ", " if count else ""
        span = (0, len(phrases[index].phrase)) if whole else name_span(phrases[index])
        spans.append((shifted(span, len(text)),))
        text += phrases[index].phrase
    return Prompt(text + rest, tuple(classes), tuple(spans))


def locate(
    phrases: Sequence[Phrase],
    text: str,
    whole: bool = False,
    terms: Sequence[str] = ("class", "caption"),
) -> Prompt:
    """Find every phrase in a text; one that does not occur is an error that names it."""
    prompt, (what, where) = find(phrases, text, whole), terms
    for index, phrase in enumerate(phrases):
        if index not in prompt.classes:
            inside = occurrences_of(phrase.phrase, prompt.text)
            reason = f"occurs only inside another {what}" if inside else "does not occur"
            raise ValueError(f"{what} {phrase.phrase!r} {reason} in the {where} {text!r}")
    return prompt


def find(phrases: Sequence[Phrase], text: str, whole: bool = False) -> Prompt:
    """The phrases that occur in a text, at each of their occurrences.

    Longer phrases claim their words first, so "dog" is not found inside "hot dog" when both
    are looked for.
    """
    text = unicodedata.normalize("NFC", text)
    claimed: list[Span] = []
    spans: dict[int, tuple[Span, ...]] = {}
    for index in sorted(canonical_order(phrases), key=lambda i: -len(phrases[i].phrase)):
        phrase = phrases[index]
        free = [
            (start, end)
            for start, end in occurrences_of(phrase.phrase, text)
            if not any(start < stop and begin < end for begin, stop in claimed)
        ]
        claimed += free
        if free:
            spans[index] = tuple(
                span
                if whole
                else shifted(name_span(Phrase(phrase.name, text[slice(*span)])), span[0])
                for span in free
            )
    there = tuple(sorted(spans))
    return Prompt(text, there, tuple(spans[index] for index in there))


def shifted(span: Span, by: int) -> Span:
    """A span so many characters further on."""
    return span[0] + by, span[1] + by


def occurrences_of(words: str, text: str) -> list[Span]:
    """Character spans where the words stand in the text as whole words, in any case."""
    pattern = r"\s+".join(re.escape(word) for word in words.split())
    return [m.span() for m in re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)]


def name_span(phrase: Phrase) -> Span:
    """Where the class itself stands in its phrase: its name, or else the head noun."""
    if named := occurrences_of(phrase.name, phrase.phrase):
        return named[-1]
    return head_noun(phrase.phrase)


def head_noun(text: str) -> Span:
    """The last word of the first noun group, by rule: "man" in "a tall man riding a horse".

    The group ends before punctuation, a preposition, conjunction or relative, and a second
    determiner; a participle left at such an end ("riding") is not the noun. Without a word, it is
    the whole text.
    """
    group: list[Span] = []
    cut = False
    for match in re.finditer(r"[\w'-]+|[^\w\s]", text):
        word = match.group().casefold()
        if not re.match(r"\w", word) or word in _DETERMINERS | _AFTER_THE_HEAD:
            cut = bool(group)
        else:
            group.append(match.span())
        if cut:
            break
    while cut and len(group) > 1 and _is_participle(text[slice(*group[-1])].casefold()):
        group.pop()
    if group:
        return group[-1]
    words = [match.span() for match in re.finditer(r"\w[\w'-]*", text)]
    return words[-1] if words else (0, len(text))


def _is_participle(word: str) -> bool:
    return word.endswith(("ing", "ed")) and word not in _NOUNS_IN_ING_OR_ED


def split(
    phrases: Sequence[Phrase],
    order: Sequence[int],
    template: str,
    fits: Callable[[str], bool],
    whole: bool = False,
) -> list[Prompt]:
    """The fewest prompts that hold all classes and fit; sizes differ by at most one class."""
    classes = tuple(order)

    @cache
    def run_fits(start: int, end: int) -> bool:
        return fits(compose(phrases, classes[start:end], template).text)

    for place, index in enumerate(classes):
        if not run_fits(place, place + 1):
            raise ValueError(
                f"class {phrases[index].phrase!r} alone is longer than the model's text encoder "
                "reads; shorten it"
            )
    # Single-class prompts fit, so the last count does.
    counts = range(1, len(classes) + 1)
    runs = next(filter(None, (_even_runs(len(classes), count, run_fits) for count in counts)))
    return [compose(phrases, classes[slice(*run)], template, whole) for run in runs]


def _even_runs(total: int, count: int, fits: Callable[[int, int], bool]) -> tuple[Span, ...] | None:
    """0 .. total cut into ``count`` runs of nearly equal size that all fit, if that can be."""
    size, larger = divmod(total, count)
    nowhere: set[Span] = set()  # (start, runs that are left) from which no way leads on
    ends = [0]
    while len(ends) <= count:
        start, left = ends[-1], count - len(ends) + 1
        longer = larger - (start - size * (len(ends) - 1))  # of the runs that are left
        for extra in (1, 0):
            end = start + size + extra
            allowed = extra <= longer < left + extra and (end, left - 1) not in nowhere
            if allowed and fits(start, end):
                ends.append(end)
                break
        else:
            nowhere.add((start, left))
            ends.pop()
            if not ends:
                return None
    return tuple(pairwise(ends))


def token_columns(offsets: Sequence[Span], spans: Iterable[Span]) -> tuple[int, ...]:
    """Tokens that share a character with one of the spans; special tokens have none."""
    return tuple(
        column
        for column, (start, end) in enumerate(offsets)
        if any(start < stop and begin < end for begin, stop in spans if start < end)
    )
