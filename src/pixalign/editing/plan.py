"""Before an edit is drawn: what is asked, prompts paired, pictures inverted, words found."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pixalign.alignment.result import Alignment
from pixalign.backbones import Backbone
from pixalign.core.checks import check_choice, check_number
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase, Size
from pixalign.diffusion.sampling import Sampler, initial_noise, picture_size, to_pictures
from pixalign.editing.cache import InversionCache, inversions_of
from pixalign.editing.inversion import InversionSettings
from pixalign.methods import METHODS
from pixalign.pictures.reading import model_size, read_image
from pixalign.text.pairing import Columns, Pairing, columns_of, normal, pair
from pixalign.text.prompts import Span, head_noun, occurrences_of

# By name the method of `pixalign.methods` whose heatmaps say where new words attend;
# Prompt-to-Prompt asks none.
EDITING_METHODS = {
    "elbo": "elbo", "dense": "dense", "diffsegmenter": "diffsegmenter", "ptp": None,
}  # fmt: skip
BLENDS = ("attention", "heatmap", None)


@dataclass(frozen=True, eq=False)
class EditRequest:
    """What is to become of a picture, or without one of what the model draws from a seed.

    ``entities`` are phrases of the source prompt to compare the changed words with, ``weights``
    factors of target words, and ``blend_words`` source and target words for the local blend.
    """

    source: str
    target: str
    image: Any = None  # as `read_image` takes it
    seed: int = 0
    entities: Sequence[str] = ()
    weights: Mapping[str, float] | None = None
    blend_words: tuple[str, str] | None = None

    @cached_property
    def picture(self) -> Image.Image | None:
        """The image, read."""
        return None if self.image is None else read_image(self.image)

    @property
    def file(self) -> str | None:
        """The image's path, where it has one."""
        return os.fspath(self.image) if isinstance(self.image, str | os.PathLike) else None

    def size(self, backbone: Backbone, size: Size | None) -> Size:
        """(height, width) at which the picture is edited: that given, or the model's area."""
        if size is not None or self.picture is None:
            return picture_size(backbone, size)
        shape, native = (self.picture.height, self.picture.width), backbone.native_size
        return model_size(shape, "keep", native, backbone.size_multiple, backbone.largest_side)


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
        check_number("guidance", self.guidance)
        for name in ("cross_replace", "self_replace", "blend_start", "blend_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 to 1")

    def within(self, index: int, part: float) -> bool:
        """Whether a step lies in the first part of the path."""
        return index / self.steps < part

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
    counts = [len(value) for value in asked.values() if isinstance(value, list | tuple)]
    if isinstance(entities, str):
        raise ValueError(f"entities is {entities!r}; give a list, such as ['dog', 'red car']")
    count = next(iter(counts), 1)
    if entities is None or all(isinstance(phrase, str) for phrase in entities):
        entities = [entities or ()] * count
    if isinstance(blend_words, tuple):  # a pair
        blend_words = [blend_words] * count
    asked |= {"entities": entities, "weights": weights, "blend_words": blend_words}
    for name, value in asked.items():
        if not isinstance(value, list | tuple):
            asked[name] = [value] * count
        elif len(value) != count:
            raise ValueError(
                f"{name} has {len(value)} items for {count} edits; allowed: one for each"
            )
    rows = (dict(zip(asked, row, strict=True)) for row in zip(*asked.values(), strict=True))
    return [EditRequest(**row) for row in rows], bool(counts)


@dataclass(eq=False)
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
    prompts = [text for request in requests for text in (request.source, request.target)]
    for prompt in prompts:
        model.backbone.check_prompt(prompt)
    length = model.backbone.encode_text(list(map(normal, prompts))).embeds.shape[1]
    plans = [_plan(model.backbone, request, size, length) for request in requests]
    given = {plan: plan.picture for plan in plans if plan.picture is not None}
    prompts = [plan.pairing.source for plan in given]
    ways = inversions_of(model, list(given.values()), prompts, inversion, cache)
    for plan, way in zip(given, ways, strict=True):
        plan.noise, plan.unconditional = way.noise.to(plan.noise.device), way.unconditional
    _align_sources(model, [plan for plan in plans if plan.pairing.changes], settings)
    return plans


def _plan(backbone: Backbone, request: EditRequest, size: Size, length: int) -> EditPlan:
    """An edit as far as it is known without a pass of the network, in so many text columns."""
    pairing = pair(backbone, request.source, request.target, length, request.weights)
    if request.blend_words is not None:
        texts = zip((pairing.source, pairing.target), request.blend_words, strict=True)
        ours, theirs = (columns_of(backbone, text, words, length) for text, words in texts)
    else:
        parts = [part for change in pairing.changes for part in change.columns]
        ours, theirs = (tuple(sorted({c for part in parts for c in part[i]})) for i in (0, 1))
    noise, picture = initial_noise(backbone, [request.seed], size), request.picture
    if picture is not None:
        picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    columns = (ours, theirs) if ours else None
    return EditPlan(request, pairing, noise, picture=picture, blend_columns=columns)


def _align_sources(
    model: AlignmentModel, plans: Sequence[EditPlan], settings: EditSettings
) -> None:
    """Give plans in which words change these words' heatmaps, if any are needed."""
    if settings.aligned_by is None or not plans:
        return
    asked = [classes_of(plan.pairing, plan.request.entities) for plan in plans]
    if settings.compares_classes and any(len(classes) == 1 for classes, _ in asked):
        warnings.warn(
            "calibration compares classes, and of some source prompts only one is known; name the "
            "others as entities",
            UserWarning,
            stacklevel=5,
        )
    alignments: list[Alignment] = model.align(
        _source_pictures(model, plans, settings),
        [classes for classes, _ in asked],
        method=settings.aligned_by,
        caption=[plan.pairing.source for plan in plans],
    )
    for plan, alignment, (_, owners) in zip(plans, alignments, asked, strict=True):
        assert alignment.config.threshold is not None, "the config of a result is resolved"
        plan.heatmaps = torch.from_numpy(alignment.heatmaps[owners])
        plan.threshold, plan.alignment = alignment.config.threshold, alignment


def _source_pictures(
    model: AlignmentModel, plans: Sequence[EditPlan], settings: EditSettings
) -> list[Image.Image]:
    """The given pictures, and those that the model draws from the others' noise."""
    backbone, unseen = model.backbone, [plan for plan in plans if plan.picture is None]
    drawn: Iterator[Image.Image] = iter(())
    if unseen:
        prompts = [plan.pairing.source for plan in unseen]
        noise = torch.cat([plan.noise for plan in unseen])
        how = (settings.steps, settings.guidance, model.batch_size)
        sampler = Sampler(backbone, prompts, *how, (noise.shape[-2], noise.shape[-1]))
        with Progress(len(unseen) * settings.steps, "draw", model.progress, "step") as bar:
            drawn = iter(to_pictures(backbone.decode_latents(sampler.run(noise, bar=bar))))
    return [next(drawn) if plan.picture is None else plan.picture for plan in plans]


def classes_of(pairing: Pairing, entities: Sequence[str]) -> tuple[list[Phrase], list[int]]:
    """The classes to align with the source picture, and which of them each change is of.

    An entity that holds the changed words stands for them, or they for themselves; such a class
    looks where its head noun does. The entities that do not change are there for the comparison,
    but those that are a part of changed words.
    """
    places = {entity: occurrences_of(entity, pairing.source) for entity in entities}
    owners: list[str] = []
    phrases: dict[str, Phrase] = {}  # by text, in any case
    for change in pairing.changes:
        around = [e for e, spans in places.items() if any(_within(change.span, s) for s in spans)]
        text = around[0] if around else change.source
        owners.append(text.casefold())
        phrases.setdefault(owners[-1], Phrase(text[slice(*head_noun(text))], text))
    changed = [change.span for change in pairing.changes]
    for entity, spans in places.items():
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
