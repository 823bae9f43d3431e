"""A prompt is drawn: is everything there, apart from each other, and with its own attributes?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from pixalign.alignment.plan import whole_texts
from pixalign.alignment.result import Alignment
from pixalign.alignment.trust import absence
from pixalign.attention.capture import capture
from pixalign.audit.records import Record, measured_results, rounded, thumbnail
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Evidence, Phrase
from pixalign.generation.methods import GenerationMethod
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.run import draw_requests
from pixalign.methods.attention import Attention
from pixalign.methods.dense import Dense
from pixalign.pictures.drawing import tinted
from pixalign.text.entities import Entity
from pixalign.text.prompts import Span, occurrences_of

REGION = 0.5  # of a map's peak: where a word is
MERGED = 0.5  # IoU of two words' regions from which on they are in one place
# In a picture that the model drew of a text itself, more of the text explains a little: an entity
# is neglected below so many times the bound of absence. Chosen on lab:sd2 (docs/audit.md).
NEGLECTED = 10.0
# Red leaked from a dog to a blue cat if "red cat" explains the cat better than "cat" and "blue cat"
# do, by this share. Chosen on the embedded model (docs/audit.md).
LEAKED = 0.05


@dataclass(frozen=True)
class Faults:
    """What went wrong in a drawn picture: entities by their places in the prompt.

    ``pairs`` are (first, second, whether merged) of entities that are there, ``attributes`` (place
    in the record, the other entity that the word suits best, the share by which it suits better
    than what the prompt says of that one, whether it leaked there).
    """

    neglected: tuple[bool, ...]
    pairs: tuple[tuple[int, int, bool], ...]
    attributes: tuple[tuple[int, int, float, bool], ...]

    @property
    def none(self) -> bool:
        """Whether all is there, apart, and with its own attributes."""
        found = (each[-1] for each in (*self.pairs, *self.attributes))
        return not any((*self.neglected, *found))


def faults(record: Record) -> Faults:
    """An entity is neglected where its standing in the drawn picture is below `NEGLECTED` times
    the bound of absence. Two that are there are merged where the regions of their words' maps
    overlap by `MERGED` or more. A word that describes one of them leaks to another whose
    place is explained better with this word than without it or as the prompt says, by a share above
    `LEAKED`.
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
    for place, word in enumerate(record["attributes"]):
        added = _added(record, word, there)
        if added:
            rival = max(added, key=lambda index: added[index])
            attributes.append((place, rival, added[rival], added[rival] > LEAKED))
    return Faults(neglected, pairs, tuple(attributes))


def _added(record: Record, word: Record, there: Sequence[int]) -> dict[int, float]:
    """What a word adds to each other entity, as a share of what is explained with it.

    Only of entities that are there, and to those that the prompt does not give the same word; -1
    where nothing is explained with it.
    """
    found: dict[int, float] = {}
    for index in there if word["of"] in there else ():
        own = [each["word"].casefold() for each in record["attributes"] if each["of"] == index]
        if index == word["of"] or word["word"].casefold() in own:
            continue
        said, explained = record["classes"][index]["explained"], word["with"][index]
        found[index] = max(1 - max(said, 0) / explained, -1.0) if explained > 0 else -1.0
    return found


def drawn_record(
    model: AlignmentModel,
    prompt: str,
    entities: Sequence[Entity],
    steps: int,
    guidance: float | None,
    config: AlignConfig,
    seed: int,
) -> Record:
    """Draw a prompt plainly, reading its nouns' maps on the way, and look at the picture.

    The record has numbers; `faults` judges them. A noun that the prompt repeats has one map for
    all its places: it is in no pair.
    """
    usual = model.backbone.guidance if guidance is None else guidance
    request = GenerationRequest(prompt, seed, tuple(entities))
    nouns = [_text(prompt, entity.head) for entity in entities]
    image, heads = _drawn(model, request, nouns, GenerationSettings(steps, usual))
    phrases = [Phrase(noun, entity.text) for noun, entity in zip(nouns, entities, strict=True)]
    if len({noun.casefold() for noun in nouns}) < len(nouns):  # told apart by all of their words
        phrases = [Phrase(entity.text) for entity in entities]
    words = _described(prompt, entities)
    texts = _texts(model, prompt, entities, [word for word, _ in words], config)
    further = tuple(text for row in texts for text in row)
    results, measured = measured_results(model, image, phrases, config, seed, further)
    dense, errors = results[Dense.name], measured.task.errors
    assert dense.trust is not None
    assert errors is not None
    regions = _regions(dense)
    whole, plain, *described = (explained_in(errors.of(row).evidence(), regions) for row in texts)
    return {
        "prompt": prompt,
        "seed": seed,
        "absent_below": absence(dense.config),
        "classes": [
            {
                "name": noun,
                "phrase": entity.text,
                "verdict": verdict.verdict,
                "other": verdict.other,
                **{name: rounded(value) for name, value in verdict.numbers.items()},
                "explained": max(own),
            }
            for noun, entity, verdict, *own in zip(
                nouns, entities, dense.trust, whole, plain, strict=True
            )
        ],
        "pairs": _pairs(heads),
        "attributes": [
            {"word": word, "of": owner, "with": explained}
            for (word, owner), explained in zip(words, described, strict=True)
        ],
        "picture": image,
        "shown": {
            "picture": thumbnail(image),
            "dense": thumbnail(tinted(image, dense.mask())),
        },
    }


def overlap(one: Tensor, two: Tensor) -> float:
    """The IoU of the regions of two maps [H, W]: where each has `REGION` of its peak or more."""
    a, b = (minmax(each[None], (1, 2))[0] >= REGION for each in (one, two))
    return float((a & b).sum() / (a | b).sum().clamp_min(1))


def explained_in(evidence: Evidence, regions: Sequence[NDArray[np.bool_]]) -> list[float]:
    """How much the text of each entity explains in its region [H, W]: by how much the error falls.

    In units of the mean error under the empty text; a cell counts as much as the region covers it.
    """
    falls = 2 * evidence.projection - evidence.energy
    covered = torch.from_numpy(np.stack(regions)).float()
    covered = adaptive_avg_pool2d(covered, (falls.shape[-2], falls.shape[-1]))
    means = (falls * covered).sum((1, 2)) / covered.sum((1, 2)).clamp_min(1e-12)
    return list(map(rounded, means.tolist()))


def _text(prompt: str, span: Span) -> str:
    return prompt[slice(*span)]


def _drawn(
    model: AlignmentModel,
    request: GenerationRequest,
    nouns: Sequence[str],
    settings: GenerationSettings,
) -> tuple[Image.Image, list[Tensor | None]]:
    """A picture, and the map [H, W] of each noun that stands once in its prompt."""
    once = [noun for noun in nouns if len(occurrences_of(noun, request.prompt)) == 1]
    weights = model.resolve(None, Attention.name).cross_weights
    listening = capture(model.backbone, once, request.prompt, cross_weights=weights)
    with model.backbone.lock, listening if once else nullcontext() as maps:
        (made,) = draw_requests(model, [request], settings, GenerationMethod, label="draw")
    size = (made.image.height, made.image.width)
    by_noun = {} if maps is None else dict(zip(once, maps.heatmaps(size)[0], strict=True))
    return made.image, [by_noun.get(noun) for noun in nouns]


def _described(prompt: str, entities: Sequence[Entity]) -> list[tuple[str, int]]:
    """Words that describe an entity, with its number; none where they can leak to no other."""
    return [
        (_text(prompt, span), owner)
        for owner, entity in enumerate(entities)
        for span in entity.modifiers
        if len(entities) > 1
    ]


def _texts(
    model: AlignmentModel,
    prompt: str,
    entities: Sequence[Entity],
    words: Sequence[str],
    config: AlignConfig,
) -> list[tuple[str, ...]]:
    """What a picture is asked for: every entity, that without the first word that describes it,
    and that with each of ``words`` in its place.

    The first alone: of "blue fire truck" no rule tells that "fire" describes no truck.
    """
    settings = model.resolve(config, Dense.name)
    whole = [entity.text for entity in entities]
    plain = [
        _text(prompt, (each.modifiers[0][1], each.span[1])).strip() if each.modifiers else each.text
        for each in entities
    ]
    plain = plain if words else whole  # nothing is compared
    rows = [whole, plain, *([f"{word} {rest}" for rest in plain] for word in words)]
    return [whole_texts(model.backbone, row, settings) for row in rows]


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
