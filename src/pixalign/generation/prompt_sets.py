"""Prompt sets for compositional generation: drawn by seed, or read from files.

The generated ones follow the designs of Attend-and-Excite and DVMP with words of our own. The same
seed gives the same prompts, and fewer prompts are the first of more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np

from pixalign.core.files import read_json

SEED = 2024
DVMP_COUNT = 600
AE, DVMP = 1, 2  # the second half of each generator's key, so that no two sets share their draws

GROUPS = ("animals", "animals_objects", "objects")
ANIMALS = tuple("cat dog bird bear lion horse elephant monkey frog turtle rabbit mouse".split())
OBJECTS = tuple(
    "backpack glasses crown suitcase chair balloon bow car bowl bench clock apple".split()
)
PROMPT_COLOURS = tuple("red orange yellow green blue purple pink brown gray black white".split())
WORN = ("glasses", "crown", "bow")  # "a cat with a red bow"
PLURAL = ("glasses",)  # without an article


@dataclass(frozen=True)
class SetPrompt:
    """A prompt of a set and its entities: phrases of the text with their attributes, in order.

    Without entities they are left to be found.
    """

    text: str
    entities: tuple[str, ...]


class Kind:
    """Nouns that take the same modifiers: at most one of each list, written in this order."""

    def __init__(self, nouns: str, modifiers: str) -> None:
        self.nouns, self.modifiers = nouns.split(), [w.split() for w in modifiers.split(",")]


_COLOURED = " ".join(PROMPT_COLOURS) + ", spotted striped checkered dotted"
DVMP_KINDS = (
    Kind(  # animals
        "antelope bear bird cat cow crocodile deer dog donkey duck elephant fox frog giraffe goat "
        "horse kangaroo lion lizard monkey mouse otter owl panda parrot penguin pig rabbit sheep "
        "squirrel tiger turtle wolf zebra",
        "sleepy happy angry curious proud, tiny small big, furry fluffy wet shaggy, "
        f"{_COLOURED}, baby",
    ),
    Kind(  # objects
        "backpack balloon basket bell bench bicycle boat book bottle bowl bus car chair clock "
        "crown cup drum guitar hat kettle ladder lamp mug piano plate shoe sofa spoon "
        "suitcase table teapot train truck umbrella vase violin",
        "beautiful broken elegant, tiny small big tall, modern old antique, shiny dusty smooth, "
        f"{_COLOURED}, wooden metal glass plastic leather",
    ),
    Kind(  # food
        "apple avocado banana carrot coconut cookie cupcake lemon mango mushroom onion orange "
        "peach pear pepper pineapple plum pumpkin strawberry tomato",
        f"tiny small big, fresh ripe rotten sliced, shiny fuzzy frozen, {_COLOURED}",
    ),
)
DVMP_MODIFIERS = 3  # of a noun, at most


def attend_excite(seed: int = SEED) -> dict[str, tuple[SetPrompt, ...]]:
    """{group: prompts}: 66 pairs of animals, 144 animals each with an object, 66 pairs of objects.

    Every object has a colour, two in one prompt different ones; an animal has none. What can be
    worn joins the animal by "with", everything else by "and".
    """
    rng = generator(seed, AE)
    mixed = [
        _joined(
            (animal, f"{rng.choice(PROMPT_COLOURS)} {thing}"), "with" if thing in WORN else "and"
        )
        for animal, thing in product(ANIMALS, OBJECTS)
    ]
    objects = [_joined(coloured(rng, PROMPT_COLOURS, pair)) for pair in combinations(OBJECTS, 2)]
    animals = map(_joined, combinations(ANIMALS, 2))
    return {"animals": tuple(animals), "animals_objects": tuple(mixed), "objects": tuple(objects)}


def read_attend_excite(path: str | os.PathLike[str]) -> dict[str, tuple[SetPrompt, ...]]:
    """{group: prompts} from JSON {"animals": [text, ...], "animals_objects": .., "objects": ..}.

    Entities are the two animals or objects of the design that a text names, with their colours;
    a text that names more or fewer has none.
    """
    shape = f"allowed: lists of texts named {', '.join(GROUPS)}"
    content = read_json(path)
    if not isinstance(content, dict) or set(content) != set(GROUPS):
        held = list(content) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{str(path)!r} holds {held}; {shape}")
    for group, texts in content.items():
        if not isinstance(texts, list):
            raise ValueError(f"{str(path)!r} has {texts!r} as {group!r}; {shape}")
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"{str(path)!r} has {text!r} in {group!r}; {shape}")
    return {
        group: tuple(SetPrompt(text, _named(text)) for text in content[group]) for group in GROUPS
    }


def dvmp(count: int = DVMP_COUNT, seed: int = SEED) -> tuple[SetPrompt, ...]:
    """Prompts of one to three nouns, each with up to three modifiers, at least one a prompt.

    No noun and no modifier stands twice in a prompt, and no prompt twice.
    """
    rng = generator(seed, DVMP, count)
    prompts: dict[str, SetPrompt] = {}
    while len(prompts) < count:
        phrases: list[str] = []
        for _ in range(rng.integers(1, 4)):
            phrases.append(_described_noun(rng, " ".join(phrases).split()))
        if any(" " in phrase for phrase in phrases):
            prompt = _joined(phrases)
            prompts.setdefault(prompt.text, prompt)
    return tuple(prompts.values())


def read_abc6k(path: str | os.PathLike[str]) -> tuple[SetPrompt, ...]:
    """Captions from a text file, each followed by itself with two colours swapped.

    Entities are left to be found; blank lines do not count.
    """
    text = Path(path).read_text(encoding="utf-8-sig")
    captions = [line.strip() for line in text.split("\n") if line.strip()]
    if not captions or len(captions) % 2:
        raise ValueError(
            f"{str(path)!r} has {len(captions)} captions; allowed: pairs of lines, a caption and "
            "the same with its colours swapped"
        )
    return tuple(SetPrompt(caption, ()) for caption in captions)


# Each needs no arguments and takes ``seed``; all but Attend-and-Excite's take ``count``.
PROMPT_SETS: dict[str, Callable[..., tuple[SetPrompt, ...]]] = {
    "ae-animals": lambda seed=SEED: attend_excite(seed)["animals"],
    "ae-animals-objects": lambda seed=SEED: attend_excite(seed)["animals_objects"],
    "ae-objects": lambda seed=SEED: attend_excite(seed)["objects"],
    "dvmp": dvmp,
}


def generator(seed: int, stream: int, count: int = 1, part: int = 0) -> np.random.Generator:
    """The generator of one set and seed, parts of it independent, to draw ``count`` prompts."""
    if seed < 0 or count < 1:
        raise ValueError(f"seed is {seed}, count is {count}; allowed: seed >= 0, count >= 1")
    return np.random.Generator(np.random.Philox(key=[seed, stream + 256 * part]))


def _joined(phrases: Sequence[str], word: str = "and") -> SetPrompt:
    """ "a cat, an owl and a red car": phrases with their articles, the last after the word."""
    *first, last = [_with_article(phrase) for phrase in phrases]
    text = f"{', '.join(first)} {word} {last}" if first else last
    return SetPrompt(text, tuple(phrases))


def coloured(rng: np.random.Generator, colours: Sequence[str], names: Sequence[str]) -> list[str]:
    """Each name after a colour of its own."""
    drawn = rng.choice(colours, len(names), replace=False)
    return [f"{colour} {name}" for colour, name in zip(drawn, names, strict=True)]


def _with_article(phrase: str) -> str:
    """By the first letter, which is right for every word of the lists here."""
    if phrase.split()[-1] in PLURAL:
        return phrase
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def _named(text: str) -> tuple[str, ...]:
    """The two nouns of Attend-and-Excite that a text names, each with a colour before it."""
    colour = rf"(?:(?:{'|'.join(PROMPT_COLOURS)})\s+)?"
    pattern = rf"(?<!\w){colour}(?:{'|'.join(ANIMALS + OBJECTS)})(?!\w)"
    phrases = tuple(re.findall(pattern, text, re.IGNORECASE))
    return phrases if len(phrases) == 2 else ()


def _described_noun(rng: np.random.Generator, used: Sequence[str]) -> str:
    """A noun of any kind with up to DVMP_MODIFIERS modifiers, all of them words not yet used."""
    kind = DVMP_KINDS[rng.integers(len(DVMP_KINDS))]
    noun = _drawn(rng, kind.nouns, used)
    lists = rng.permutation(len(kind.modifiers))[: rng.integers(DVMP_MODIFIERS + 1)]
    words = [_drawn(rng, kind.modifiers[chosen], (*used, noun)) for chosen in sorted(lists)]
    return " ".join([*filter(None, words), noun])


def _drawn(rng: np.random.Generator, words: Sequence[str], used: Sequence[str]) -> str:
    """One of the words that are not used yet; "" when all are."""
    free = [word for word in words if word not in used]
    return free[rng.integers(len(free))] if free else ""
