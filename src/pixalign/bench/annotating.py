"""Masks of drawn pictures, by our own methods or others, and what of them is not believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from PIL import Image

from pixalign.alignment.result import Alignment
from pixalign.backbones.grounding import GroundedSam
from pixalign.bench.metrics import IGNORE
from pixalign.core.checks import check_number
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase

SIGNALS = (
    "confidence",
    "presence",
    "standing",
    "lead",
    "margin",
    "score",
)  # what a bound may ask of


@dataclass(frozen=True)
class AnnotatedObject:
    """What an annotator says of one phrase.

    ``verdict`` is that of `pixalign.Trust`, None where there is none. ``numbers`` are the numbers
    behind it, and ``margin``, the lead over another class's; ``confidence`` is the mean probability
    of the phrase's pixels, ``score`` a detector's. ``share`` is the mask's part of the picture.
    """

    name: str
    phrase: str
    share: float
    verdict: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Annotation:
    """``mask`` uint8 [H, W] is 0 on the background, i on the i-th object, 255 where unknown.

    ``confidence`` float32 [H, W] is each pixel's probability of its label, where that is known.
    """

    mask: np.ndarray
    objects: tuple[AnnotatedObject, ...]
    confidence: np.ndarray | None = None

    @property
    def annotated(self) -> tuple[bool, ...]:
        """Which of the objects have a pixel."""
        present = set(np.unique(self.mask).tolist())
        return tuple(number in present for number in range(1, len(self.objects) + 1))


@dataclass(frozen=True)
class Belief:
    """Which objects of an annotation are believed; the pixels of the others become 255.

    Without ``sure_only`` verdicts do not matter. ``least`` has bounds by names in SIGNALS; an
    object of which a signal is not known passes. Pixels whose probability is below ``pixels``
    become 255 too.
    """

    sure_only: bool = True
    least: Mapping[str, float] = field(default_factory=dict)
    pixels: float = 0.0

    def __post_init__(self) -> None:
        for name, bound in self.least.items():
            if name not in SIGNALS:
                raise ValueError(f"a bound is on {name!r}; allowed: {', '.join(SIGNALS)}")
            check_number(f"the bound on {name}", bound)
        if not 0 <= self.pixels <= 1:
            raise ValueError(f"the bound on pixels is {self.pixels!r}; allowed: 0 to 1")

    def believes(self, said: AnnotatedObject) -> bool:
        """Whether an object passes."""
        if self.sure_only and said.verdict not in (None, "sure"):
            return False
        return all(said.numbers.get(name, bound) >= bound for name, bound in self.least.items())

    def applied(self, annotation: Annotation) -> Annotation:
        """The annotation with what is not believed as 255."""
        mask = annotation.mask.copy()
        for number, said in enumerate(annotation.objects, 1):
            if not self.believes(said):
                mask[mask == number] = IGNORE
        if annotation.confidence is not None:
            mask[annotation.confidence < self.pixels] = IGNORE
        return dataclasses.replace(annotation, mask=mask)


class Annotator(Protocol):
    """Finds phrases in pictures."""

    def annotate(self, image: Image.Image, phrases: Sequence[Phrase], seed: int) -> Annotation:
        """Where each phrase is, all of it, believed or not."""

    def record(self) -> dict[str, Any]:
        """What its masks depend on, as plain values."""


@dataclass(frozen=True)
class AlignmentAnnotator:
    """A model of text and pictures that finds what it, or another, has drawn."""

    model: AlignmentModel
    method: str = "dense"

    def annotate(self, image: Image.Image, phrases: Sequence[Phrase], seed: int) -> Annotation:
        """By the method under the model's own settings."""
        return annotation_of(self.model.align(image, list(phrases), method=self.method, seed=seed))

    def record(self) -> dict[str, Any]:
        """Method, model and settings."""
        about = self.model.record()
        about.pop("device", None)
        config = self.model.resolve(None, self.method).to_dict()
        return {"method": self.method, "model": about, "config": config}


@dataclass(frozen=True)
class GroundedSamAnnotator:
    """Grounding DINO's boxes of the phrases, and SAM's masks in them.

    Where masks of two phrases lie over each other, the one of the higher score has the pixel.
    """

    networks: GroundedSam

    def annotate(self, image: Image.Image, phrases: Sequence[Phrase], seed: int) -> Annotation:
        """All boxes of a phrase are one object."""
        boxes, scores, of = self.networks.boxes(image, [each.phrase for each in phrases])
        found = self.networks.masks(image, boxes).numpy()
        mask = np.zeros((image.height, image.width), dtype=np.uint8)
        best = [0.0] * len(phrases)
        for place in reversed(range(len(boxes))):  # the best is painted last
            mask[found[place]] = 1 + int(of[place])
            best[int(of[place])] = float(scores[place])
        objects = (
            AnnotatedObject(
                each.name,
                each.phrase,
                float((mask == number).mean()),
                numbers={"score": round(best[number - 1], 6)},
            )
            for number, each in enumerate(phrases, 1)
        )
        return Annotation(mask, tuple(objects))

    def record(self) -> dict[str, Any]:
        """Names, weights and the bound on scores."""
        return {"method": "grounded-sam", **self.networks.record()}


@dataclass(frozen=True)
class AgreeingAnnotators:
    """Two annotators, and what both say."""

    first: Annotator
    second: Annotator

    def annotate(self, image: Image.Image, phrases: Sequence[Phrase], seed: int) -> Annotation:
        """Where they differ, 255."""
        found = (each.annotate(image, phrases, seed) for each in (self.first, self.second))
        return agreed(*found)

    def record(self) -> dict[str, Any]:
        """Those of both."""
        return {"method": "both", "first": self.first.record(), "second": self.second.record()}


def annotation_of(aligned: Alignment) -> Annotation:
    """A result's mask, its verdicts, and how sure the pixels of each class are."""
    mask, confidence = aligned.mask().astype(np.uint8), aligned.confidence()
    verdicts = aligned.trust or (None,) * len(aligned.phrases)
    objects = []
    for number, (phrase, trust) in enumerate(zip(aligned.phrases, verdicts, strict=True), 1):
        own = mask == number
        numbers = {} if trust is None else dict(trust.numbers)
        if "lead" in numbers:
            numbers["margin"] = numbers["lead"] - numbers["others_lead"]
        numbers["confidence"] = float(confidence[own].mean()) if own.any() else 0.0
        objects.append(
            AnnotatedObject(
                phrase.name,
                phrase.phrase,
                float(own.mean()),
                None if trust is None else trust.verdict,
                {name: round(value, 6) for name, value in numbers.items()},
            )
        )
    return Annotation(mask, tuple(objects), confidence)


def agreed(first: Annotation, second: Annotation) -> Annotation:
    """What two annotators of the same phrases say alike; elsewhere, 255.

    Verdicts and numbers are those of both, the first's where both have one.
    """
    mask = np.where(first.mask == second.mask, first.mask, np.uint8(IGNORE))
    objects = []
    for number, (one, other) in enumerate(zip(first.objects, second.objects, strict=True), 1):
        joined = {**other.numbers, **one.numbers}
        verdict = one.verdict or other.verdict
        share = float((mask == number).mean())
        objects.append(AnnotatedObject(one.name, one.phrase, share, verdict, joined))
    known = first.confidence if second.confidence is None else second.confidence
    return Annotation(mask, tuple(objects), known)
