"""What is asked of an edit, and how it is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from pixalign.core.checks import check_choice
from pixalign.methods import METHODS
from pixalign.pictures.reading import read_image

# By name the method of `pixalign.methods` whose heatmaps say where new words attend;
# Prompt-to-Prompt asks none.
EDITING_METHODS = {"elbo": "elbo", "diffsegmenter": "diffsegmenter", "ptp": None}
BLENDS = ("attention", "heatmap", None)


@dataclass(frozen=True, eq=False)
class EditRequest:
    """What is to become of a picture, or without one of what the model draws from a seed.

    ``entities`` are phrases of the source prompt to compare the changed words with, ``weights``
    factors of target words, and ``blend_words`` source and target words for the local blend.
    """

    source: str
    target: str
    picture: Image.Image | None = None
    file: str | None = None  # of the picture
    seed: int = 0
    entities: tuple[str, ...] = ()
    weights: Mapping[str, float] | None = None
    blend_words: tuple[str, str] | None = None


@dataclass(frozen=True)
class EditSettings:
    """How pictures are edited.

    ``cross_replace`` and ``self_replace`` are the parts of the steps in which the target's
    attention to text and to itself is written, the latter in layers whose cells cover at least
    ``self_factor`` latent positions a side. ``blend`` keeps the rest as it is, from ``blend_start``
    on: "attention" edits where the words' attention is above ``blend_threshold`` of its maximum,
    "heatmap" where a heatmap reaches the alignment's threshold, None everywhere.
    """

    method: str = "elbo"
    steps: int = 50
    guidance: float = 7.5
    cross_replace: float = 0.8
    self_replace: float = 0.4
    self_factor: int = 2
    blend: str | None = "attention"
    blend_start: float = 0.2
    blend_threshold: float = 0.3

    def __post_init__(self) -> None:
        check_choice("method", self.method, tuple(EDITING_METHODS))
        check_choice("blend", self.blend, BLENDS)
        for name in ("cross_replace", "self_replace", "blend_start", "blend_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 to 1")

    def within(self, index: int, part: float) -> bool:
        """Whether a step lies in the first part of the path."""
        return index / self.steps < part

    @property
    def injects(self) -> bool:
        """Whether heatmaps are written into the target's attention."""
        return EDITING_METHODS[self.method] is not None

    @property
    def aligned_by(self) -> str | None:
        """The method that makes heatmaps, if any are needed."""
        return EDITING_METHODS[self.method] or ("elbo" if self.blend == "heatmap" else None)

    @property
    def compares_classes(self) -> bool:
        """Whether that method calibrates, so that the source's other entities matter."""
        return self.aligned_by is not None and METHODS[self.aligned_by].calibrations[0] != "none"


def read_requests(
    image: Any, source: Any, target: Any, seed: Any, entities: Any, weights: Any, blend_words: Any
) -> tuple[list[EditRequest], bool]:
    """A request an edit, and whether there is a list of them.

    There is where image, source, target or seed is one. Everything may be a list of one for each
    edit, or the same for all.
    """
    asked = {"image": image, "source": source, "target": target, "seed": seed}
    counts = {name: len(v) for name, v in asked.items() if isinstance(v, list | tuple)}
    if len(set(counts.values())) > 1:
        lists = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise ValueError(f"lists of different lengths: {lists}; allowed: one for each edit")
    if isinstance(entities, str):
        raise ValueError(f"entities is {entities!r}; give a list, such as ['dog', 'red car']")
    count = next(iter(counts.values()), 1)
    if entities is None or all(isinstance(phrase, str) for phrase in entities):
        entities = [entities or ()] * count
    asked |= {"entities": entities, "weights": weights, "blend_words": blend_words}
    by_name = {name: _one_each(name, value, count) for name, value in asked.items()}
    requests = []
    for number in range(count):
        own = {name: values[number] for name, values in by_name.items()}
        given = own.pop("image")
        if given is not None:
            own["picture"] = read_image(given)
            own["file"] = os.fspath(given) if isinstance(given, str | os.PathLike) else None
        requests.append(EditRequest(**{**own, "entities": tuple(own["entities"])}))
    return requests, bool(counts)


def _one_each(name: str, value: Any, count: int) -> list[Any]:
    """The values of ``count`` edits: a list's own, anything else again and again."""
    pair_of_words = name == "blend_words" and isinstance(value, tuple)
    if not isinstance(value, list | tuple) or pair_of_words:
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} items for {count} edits; allowed: one for each")
    return list(value)
