"""Before an edit is drawn: prompts paired, pictures inverted, changed words found in them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from pixalign.alignment.result import Alignment
from pixalign.backbones import Backbone
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase, Size
from pixalign.diffusion.sampling import GuidedOutput, initial_noise, sample, to_pictures
from pixalign.editing.cache import InversionCache, inversions_of
from pixalign.editing.inversion import InversionSettings
from pixalign.editing.request import EditRequest, EditSettings
from pixalign.methods import METHODS
from pixalign.text.pairing import Columns, Pairing, columns_of, pair
from pixalign.text.prompts import Span, head_noun, occurrences_of


@dataclass(frozen=True, eq=False)
class EditPlan:
    """One edit, ready to be drawn.

    ``noise`` float32 [1, C, h, w]; ``unconditional`` float32 [T, L, D], or None for the model's
    own. ``picture`` is the given one as the model sees it, None for one that the model draws.
    ``blend_columns`` are both sides' columns for the local blend. ``heatmaps`` float32
    [changes, H, W] in [0, 1] say where the words stood that change, and become masks at
    ``threshold``; they are of the source picture's ``alignment``.
    """

    request: EditRequest
    pairing: Pairing
    noise: Tensor
    unconditional: Tensor | None = None
    picture: Image.Image | None = None
    blend_columns: tuple[Columns, Columns] | None = None
    heatmaps: Tensor | None = None
    threshold: float = 0.5
    alignment: Alignment | None = None


def plan_edits(
    model: AlignmentModel,
    requests: Sequence[EditRequest],
    settings: EditSettings,
    inversion: InversionSettings,
    cache: InversionCache | None,
    size: Size,
) -> list[EditPlan]:
    """Pair the prompts, invert the pictures or draw the seeds' noise, and align the sources."""
    if settings.aligned_by is not None:
        METHODS[settings.aligned_by](model)  # refuses a model that the method does not know
    backbone: Backbone = model.backbone
    length = backbone.unconditional().embeds.shape[1]
    plans = []
    for request in requests:
        pairing = pair(backbone, request.source, request.target, length, request.weights)
        picture = request.picture
        if picture is not None:
            picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
        plans.append(
            EditPlan(
                request,
                pairing,
                initial_noise(backbone, [request.seed], size),
                picture=picture,
                blend_columns=_blend_columns(backbone, request, pairing, length),
            )
        )
    return _aligned(model, _inverted(model, plans, inversion, cache), settings)


def _blend_columns(
    backbone: Backbone, request: EditRequest, pairing: Pairing, length: int
) -> tuple[Columns, Columns] | None:
    """The columns of the words for the local blend: those given, or those that change."""
    if request.blend_words is not None:
        source, target = request.blend_words
        return (
            columns_of(backbone, pairing.source, source, length),
            columns_of(backbone, pairing.target, target, length),
        )
    parts = [part for change in pairing.changes for part in change.columns]
    if not parts:
        return None
    ours, theirs = ({c for part in parts for c in part[side]} for side in (0, 1))
    return tuple(sorted(ours)), tuple(sorted(theirs))


def _inverted(
    model: AlignmentModel,
    plans: Sequence[EditPlan],
    inversion: InversionSettings,
    cache: InversionCache | None,
) -> list[EditPlan]:
    """The plans, those of given pictures with the way that leads to them."""
    pictures = {row: plan.picture for row, plan in enumerate(plans) if plan.picture is not None}
    prompts = [plans[row].pairing.source for row in pictures]
    ways = inversions_of(model, list(pictures.values()), prompts, inversion, cache)
    inverted = list(plans)
    for row, way in zip(pictures, ways, strict=True):
        noise = way.noise.to(model.backbone.device)
        inverted[row] = dataclasses.replace(
            plans[row], noise=noise, unconditional=way.unconditional
        )
    return inverted


def _aligned(
    model: AlignmentModel, plans: Sequence[EditPlan], settings: EditSettings
) -> list[EditPlan]:
    """The plans, those in which words change with these words' heatmaps, if any are needed."""
    rows = [row for row, plan in enumerate(plans) if plan.pairing.changes]
    if settings.aligned_by is None or not rows:
        return list(plans)
    asked = [classes_of(plans[row].pairing, plans[row].request.entities) for row in rows]
    if METHODS[settings.aligned_by].calibrations[0] != "none" and any(
        len(classes) == 1 for classes, _ in asked
    ):
        warnings.warn(
            "calibration compares classes, and of some source prompts only one is known; name the "
            "others as entities",
            UserWarning,
            stacklevel=5,
        )
    alignments: list[Alignment] = model.align(
        _source_pictures(model, [plans[row] for row in rows], settings),
        [classes for classes, _ in asked],
        method=settings.aligned_by,
        caption=[plans[row].pairing.source for row in rows],
    )
    aligned = list(plans)
    for row, alignment, (_, owners) in zip(rows, alignments, asked, strict=True):
        assert alignment.config.threshold is not None, "the config of a result is resolved"
        aligned[row] = dataclasses.replace(
            plans[row],
            heatmaps=torch.from_numpy(alignment.heatmaps[owners]),
            threshold=alignment.config.threshold,
            alignment=alignment,
        )
    return aligned


def _source_pictures(
    model: AlignmentModel, plans: Sequence[EditPlan], settings: EditSettings
) -> list[Image.Image]:
    """The given pictures, and those that the model draws from the others' noise."""
    backbone, unseen = model.backbone, [plan for plan in plans if plan.picture is None]
    drawn: list[Image.Image] = []
    if unseen:
        texts = backbone.encode_text([plan.pairing.source for plan in unseen])
        noise = torch.cat([plan.noise for plan in unseen])
        path = backbone.schedule.path(settings.steps)
        output = GuidedOutput(backbone, path, texts, settings.guidance, model.batch_size)
        with Progress(len(unseen) * len(path), "draw", model.progress, "step") as bar:
            latents = sample(backbone, noise, path, output, bar=bar)
        drawn = to_pictures(backbone.decode_latents(latents))
    rest = iter(drawn)
    return [next(rest) if plan.picture is None else plan.picture for plan in plans]


def classes_of(pairing: Pairing, entities: Sequence[str]) -> tuple[list[Phrase], list[int]]:
    """The classes to align with the source picture, and which of them each change is of.

    An entity that holds the changed words stands for them, or they for themselves; such a class
    looks where its head noun does. The entities that do not change are there for the comparison,
    but those that are a part of changed words.
    """
    owners: list[str] = []
    phrases: dict[str, Phrase] = {}  # by text, in any case
    for change in pairing.changes:
        around = [
            entity
            for entity in entities
            if any(_within(change.span, span) for span in occurrences_of(entity, pairing.source))
        ]
        text = around[0] if around else change.source
        head = head_noun(text) or (0, len(text))
        owners.append(text.casefold())
        phrases.setdefault(owners[-1], Phrase(text[slice(*head)], text))
    changed = [change.span for change in pairing.changes]
    for entity in entities:
        spans = occurrences_of(entity, pairing.source)
        if not spans or not all(any(_within(span, part) for part in changed) for span in spans):
            phrases.setdefault(entity.casefold(), Phrase(entity))
    nouns = [phrase.name.casefold() for phrase in phrases.values()]
    classes = [
        phrase if nouns.count(phrase.name.casefold()) == 1 else Phrase(phrase.phrase)
        for phrase in phrases.values()
    ]
    return classes, [list(phrases).index(owner) for owner in owners]


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
