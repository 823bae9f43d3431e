"""Generation in the lab: prompts of its classes, controls, and what is in the pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.classifier import (
    PRESENT,
    SceneClassifier,
    colour_of,
    load_classifier,
    look_at,
    presence,
)
from pixalign.backbones.locations import located
from pixalign.bench.generation_study import (
    CLIP_FIGURE,
    METHOD_ROWS,
    Figure,
    Row,
    run_generation_study,
)
from pixalign.core.protocols import AlignmentModel
from pixalign.generation.methods import Elbo
from pixalign.generation.prompt_sets import SEED, SetPrompt, coloured, generator
from pixalign.generation.result import Generation
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS, PREFIX

LAB_COUNT = 222  # every one of the lab's 111 classes equally often, two or three a prompt


# ---- prompts ----


def lab_prompts(
    stream: int, classes: int, colours: bool, count: int = LAB_COUNT, seed: int = SEED
) -> tuple[SetPrompt, ...]:
    """ "a photo of dog, palm tree": so many of the lab's classes, or each in another colour.

    No combination comes twice. Classes are dealt from shuffled decks of all of them, one deck
    after the other, so that all are equally frequent, as far as the count allows.
    """
    names, prompts = class_names(), []
    rng, shades = generator(seed, stream, count), generator(seed, stream, part=1)
    deck: list[int] = []
    dealt: set[frozenset[int]] = set()
    for _ in range(count):
        if len(deck) <= len(names):  # keep at least one of each class
            deck += rng.permutation(len(names)).tolist()
        hand: list[int] = []
        for card in deck:
            if card not in hand and frozenset((*hand, card)) not in dealt:
                hand.append(card)
            if len(hand) == classes:
                break
        else:
            raise ValueError(f"count is {count}; so many different prompts cannot be dealt")
        dealt.add(frozenset(hand))
        for card in hand:
            deck.remove(card)
        phrases = [names[card] for card in hand]
        if colours:
            phrases = coloured(shades, COLOURS[1:], phrases)
        prompts.append(SetPrompt(PREFIX + ", ".join(phrases), tuple(phrases)))
    return tuple(prompts)


# Each takes ``count`` and ``seed``. The streams follow those of the package's own sets.
LAB_SETS: dict[str, Callable[..., tuple[SetPrompt, ...]]] = {
    "lab-pairs": partial(lab_prompts, 3, 2, False),
    "lab-attributes": partial(lab_prompts, 4, 2, True),
    "lab-three": partial(lab_prompts, 5, 3, False),
}


# ---- controls ----


class Constant(Elbo):
    """A control: every entity has the largest weight at every step."""

    name = "constant"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The strength itself."""
        return torch.full_like(errors, self.plan.settings.strength)


class Shuffled(Elbo):
    """A control: the method's own weights, given to the entities in random order."""

    name = "random order"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """Drawn anew at each step, from the picture's seed and the step."""
        seed = 1_000_003 * self.plan.requests[picture].seed + index
        order = torch.randperm(len(errors), generator=torch.Generator().manual_seed(seed))
        return super().weigh(errors, picture, index)[order]


class Reversed(Elbo):
    """A control: the entity that the step explains best weighs most."""

    name = "reversed"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The weights of the negated differences."""
        return super().weigh(-errors, picture, index)


CONTROL_ROWS: dict[str, Row] = {
    **{kind.name: (kind, 1.2) for kind in (Constant, Shuffled, Reversed)},
    **{f"1/γ = {strength:g}": (Elbo, strength) for strength in (1.1, 1.5, 2.0)},
}


# ---- what is in the pictures ----


def objects_in(made: Sequence[Generation], classifier: SceneClassifier) -> dict[str, list[str]]:
    """What is in each picture: ``found`` and ``coloured``, a digit an entity: "1" if it is there,
    and if it is there in the colour that the prompt says."""
    classes, colours = look_at(classifier, [picture.image for picture in made])
    likely = presence(classes)
    seen: dict[str, list[str]] = {"found": [], "coloured": []}
    for number, picture in enumerate(made):
        asked = [parsed(entity.text) for entity in picture.entities]
        labels = torch.tensor([label for label, _ in asked], device=classes.device)
        rows = torch.full_like(labels, number)
        shades = colour_of(classes[rows], colours[rows], labels).tolist()
        there = (likely[number, labels] >= PRESENT).tolist()
        right = [colour in (None, shade) for shade, (_, colour) in zip(shades, asked, strict=True)]
        seen["found"].append(digits(there))
        seen["coloured"].append(digits(a and b for a, b in zip(there, right, strict=True)))
    return seen


def digits(flags: Iterable[bool]) -> str:
    """ "101" of True, False, True."""
    return "".join(str(int(flag)) for flag in flags)


def parsed(phrase: str) -> tuple[int, int | None]:
    """The class and the colour, if it says one, of "red palm tree"."""
    names = class_names()
    if phrase in names:
        return names.index(phrase), None
    colour, _, name = phrase.partition(" ")
    if colour not in COLOURS[1:] or name not in names:
        raise ValueError(f"{phrase!r} names no class of the lab")
    return names.index(name), COLOURS.index(colour)


FIGURES: dict[str, Figure] = {  # all but the last in percent
    "recall": lambda row: [100 * bits.count("1") / len(bits) for bits in row["found"]],
    "all": lambda row: [100.0 * ("0" not in bits) for bits in row["found"]],
    "coloured": lambda row: [100 * bits.count("1") / len(bits) for bits in row["coloured"]],
    **CLIP_FIGURE,
}


def study_generation(
    model: AlignmentModel,
    out: Path,
    *,
    prompts: int,
    sets: Sequence[str] = tuple(LAB_SETS),
    classifier: str | Path = "lab:classifier",
    controls: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """The benchmark's study on the lab's sets, with what the classifier sees and the controls."""
    known = load_classifier(Path(located(classifier)), str(model.backbone.device))
    rows: Mapping[str, Row] = METHOD_ROWS | (CONTROL_ROWS if controls else {})
    chosen = {name: LAB_SETS[name]()[:prompts] for name in sets}
    observe = partial(objects_in, classifier=known)
    return run_generation_study(
        model, out, sets=chosen, rows=rows, observe=observe, clip="lab:clip", **options
    )
