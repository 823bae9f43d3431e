"""A prompt is drawn: is everything there, apart from each other, and with its own attributes?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pixalign.alignment.result import Alignment
from pixalign.alignment.trust import absence
from pixalign.attention.capture import capture
from pixalign.audit.records import Record, measured_results, rounded, thumbnail
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase
from pixalign.generation.methods import GenerationMethod
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.run import draw_requests
from pixalign.methods.attention import Attention
from pixalign.methods.dense import Dense
from pixalign.pictures.drawing import tinted
from pixalign.text.entities import Entity
from pixalign.text.prompts import occurrences_of

REGION = 0.5  # of a map's peak: where a word is
MERGED = 0.5  # IoU of two words' regions from which on they are in one place
# In a picture that the model drew of a text itself, more of the text explains a little: an entity
# is neglected below so many times the bound of absence. Chosen on lab:sd2 (docs/audit.md).
NEGLECTED = 10.0


@dataclass(frozen=True)
class Faults:
    """What went wrong in a drawn picture: entities by their places in the prompt.

    ``pairs`` are (first, second, whether merged) of entities that are there, ``attributes`` (place
    in the record, the other entity where the word is strongest, whether it leaked there).
    """

    neglected: tuple[bool, ...]
    pairs: tuple[tuple[int, int, bool], ...]
    attributes: tuple[tuple[int, int, bool], ...]

    @property
    def none(self) -> bool:
        """Whether all is there, apart, and with its own attributes."""
        found = (each[2] for each in (*self.pairs, *self.attributes))
        return not any((*self.neglected, *found))


def faults(record: Record) -> Faults:
    """An entity is neglected where its standing in the drawn picture is below `NEGLECTED` times
    the bound of absence. Two that are there are merged where the regions of their words' maps
    overlap by `MERGED` or more. A word that describes one of them leaks where its map is stronger
    on another's mask than on its own.
    """
    bound = NEGLECTED * record["absent_below"]
    neglected = tuple(row["standing"] < bound for row in record["classes"])
    there = [index for index, missing in enumerate(neglected) if not missing]
    pairs = tuple(
        (*pair["of"], pair["overlap"] >= MERGED)
        for pair in record["pairs"]
        if set(pair["of"]) <= set(there)
    )
    attributes = []
    for place, each in enumerate(record["attributes"]):
        others = [index for index in there if index != each["of"]]
        if others and each["of"] in there:
            rival = max(others, key=lambda index: each["strengths"][index])
            leaked = each["strengths"][rival] > each["strengths"][each["of"]]
            attributes.append((place, rival, leaked))
    return Faults(neglected, pairs, tuple(attributes))


def drawn_record(
    model: AlignmentModel,
    prompt: str,
    entities: Sequence[Entity],
    steps: int,
    guidance: float | None,
    config: AlignConfig,
    seed: int,
) -> Record:
    """Draw a prompt plainly, reading its words' maps on the way, and look at the picture.

    The record has numbers; `faults` judges them. A word that the prompt repeats has one map for
    all its places: it is in no pair and describes nothing.
    """
    usual = model.backbone.guidance if guidance is None else guidance
    request = GenerationRequest(prompt, seed, tuple(entities))
    words = _words(prompt, entities)
    weights = model.resolve(None, Attention.name).cross_weights
    listening = capture(model.backbone, words, prompt, cross_weights=weights)
    with model.backbone.lock, listening if words else nullcontext() as maps:
        (made,) = draw_requests(
            model, [request], GenerationSettings(steps, usual), GenerationMethod, label="draw"
        )
    phrases = [Phrase(_text(prompt, entity.head), entity.text) for entity in entities]
    phrases = phrases if len({p.name for p in phrases}) == len(phrases) else _whole(entities)
    results, _ = measured_results(model, made.image, phrases, config, seed)
    dense, size = results[Dense.name], (made.image.height, made.image.width)
    by_word = {} if maps is None else dict(zip(words, maps.heatmaps(size)[0], strict=True))
    assert dense.trust is not None
    heads = [by_word.get(_text(prompt, entity.head).casefold()) for entity in entities]
    return {
        "prompt": prompt,
        "seed": seed,
        "absent_below": absence(dense.config),
        "classes": [
            {
                "name": _text(prompt, entity.head),
                "phrase": entity.text,
                "verdict": verdict.verdict,
                "other": verdict.other,
                **{name: rounded(value) for name, value in verdict.numbers.items()},
            }
            for entity, verdict in zip(entities, dense.trust, strict=True)
        ],
        "pairs": _pairs(heads),
        "attributes": _attributes(prompt, entities, by_word, _regions(dense)),
        "picture": made.image,
        "shown": {
            "picture": thumbnail(made.image),
            "dense": thumbnail(tinted(made.image, dense.mask())),
        },
    }


def overlap(one: Tensor, two: Tensor) -> float:
    """The IoU of the regions of two maps [H, W]: where each has `REGION` of its peak or more."""
    a, b = (minmax(each[None], (1, 2))[0] >= REGION for each in (one, two))
    return float((a & b).sum() / (a | b).sum().clamp_min(1))


def strengths(word: Tensor, regions: Sequence[NDArray[np.bool_]]) -> list[float]:
    """The mean of a word's map [H, W] over each region; 0 over an empty one."""
    values = word.numpy()
    return [float(values[region].mean()) if region.any() else 0.0 for region in regions]


def _text(prompt: str, span: tuple[int, int]) -> str:
    return prompt[slice(*span)]


def _whole(entities: Sequence[Entity]) -> list[Phrase]:
    """Entities of one noun, told apart by all of their words."""
    return [Phrase(entity.text) for entity in entities]


def _words(prompt: str, entities: Sequence[Entity]) -> list[str]:
    """The nouns and what describes them, each once in the prompt."""
    spans = [span for entity in entities for span in (entity.head, *entity.modifiers)]
    words = dict.fromkeys(_text(prompt, span).casefold() for span in spans)
    return [word for word in words if len(occurrences_of(word, prompt)) == 1]


def _pairs(heads: Sequence[Tensor | None]) -> list[Record]:
    """How much the maps of each pair of entities overlap, where their nouns have maps."""
    return [
        {"of": [first, second], "overlap": rounded(overlap(one, two))}
        for first, second in combinations(range(len(heads)), 2)
        if (one := heads[first]) is not None and (two := heads[second]) is not None
    ]


def _regions(dense: Alignment) -> list[NDArray[np.bool_]]:
    """Where each class is: its mask, or the highest half of its heatmap if that is empty."""
    mask = dense.mask()
    regions = []
    for number, heatmap in enumerate(dense.heatmaps, 1):
        own = mask == number
        regions.append(own if own.any() else heatmap >= REGION * max(float(heatmap.max()), 1e-12))
    return regions


def _attributes(
    prompt: str,
    entities: Sequence[Entity],
    by_word: dict[str, Tensor],
    regions: Sequence[NDArray[np.bool_]],
) -> list[Record]:
    """Of each word that describes an entity, how strong its map is on every entity."""
    return [
        {"word": word, "of": owner, "strengths": list(map(rounded, strengths(found, regions)))}
        for owner, entity in enumerate(entities)
        for word in (_text(prompt, span) for span in entity.modifiers)
        if (found := by_word.get(word.casefold())) is not None
    ]
