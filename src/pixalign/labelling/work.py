"""Units of pictures in, shards out: what one process does with one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pixalign.alignment.request import EncodedImage, PreparedImage, SizesSeen, prepare_image
from pixalign.alignment.result import Alignment
from pixalign.backbones.fingerprint import fingerprint
from pixalign.config import AlignConfig
from pixalign.core.ahead import read_ahead
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase
from pixalign.labelling.manifest import UNIT, Item, Unit
from pixalign.labelling.shards import PictureLabels, write_shard
from pixalign.pictures.segments import connected

_OF_PRESENCE = (
    "resize", "template", "elbo_text", "absent_below", "absent_log_snr", "absent_blur",
)  # fmt: skip
UNITS = 2  # in hand at a time
_GRID = 256  # pixels of the longer side at which margins and entropies are taken


@dataclass(frozen=True)
class Job:
    """How pictures are labelled, and the folder for the shards.

    Of lists of more than ``candidates`` classes, where absent ones are dropped, only as many stay
    for each picture as are the likeliest to be there; None keeps all.
    """

    config: AlignConfig
    candidates: int | None
    shards: Path


@dataclass(frozen=True)
class ModelFacts:
    """What is to be known of a model before work is given to it: it may live elsewhere.

    ``record`` is what its labels depend on, as plain values.
    """

    record: Mapping[str, Any]
    sizes: SizesSeen

    @classmethod
    def of(cls, model: AlignmentModel, config: AlignConfig) -> ModelFacts:
        """Those of a model under a config."""
        about = model.record()
        about.pop("device")
        about["weights"] = fingerprint(model.backbone.pipe)
        resolved = model.resolve(config).to_dict()
        return cls({"model": about, "config": resolved}, SizesSeen.of(model.backbone))


@dataclass(frozen=True)
class Failure:
    """A picture that was not labelled, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class UnitReport:
    """What became of a unit: the ids that its shard holds now, and what failed."""

    unit: Unit
    done: tuple[str, ...]
    failures: tuple[Failure, ...]


Read = tuple[Unit, Item, PreparedImage | Failure]


def label_units(model: AlignmentModel, job: Job, units: Iterable[Unit]) -> Iterator[UnitReport]:
    """Label units in their order; the next pictures are read in threads meanwhile.

    Two are in hand, and take turns at the network: while one is there, what remains to be done of
    the other keeps no device waiting.
    """

    def read(pair: tuple[Unit, Item]) -> Read:
        unit, item = pair
        if item.picture.changed():
            return unit, item, Failure(item.picture.key, "changed since the run began")
        try:
            prepared = prepare_image(model.backbone, item.picture.path, job.config.resize)
        except (ValueError, OSError) as error:
            return unit, item, Failure(item.picture.key, str(error))
        return unit, item, prepared

    def label(unit_read: tuple[Unit, list[Read]]) -> UnitReport:
        unit, group = unit_read
        labels, failures = _label_read(model, job, group)
        if labels:
            write_shard(job.shards, unit.name, labels)
        return UnitReport(unit, tuple(each.id for each in labels), tuple(failures))

    pairs = ((unit, item) for unit in units for item in unit.items)
    with read_ahead(read, pairs, most=UNIT) as pictures:
        groups = groupby(pictures, key=lambda read: read[0])
        whole = ((unit, list(group)) for unit, group in groups)
        with read_ahead(label, whole, most=UNITS) as reports:
            yield from reports


def _label_read(
    model: AlignmentModel, job: Job, read: Sequence[Read]
) -> tuple[list[PictureLabels], list[Failure]]:
    """Labels of those that could be read; a picture that fails does not take others along."""
    failures = [found for _, _, found in read if isinstance(found, Failure)]
    pictures = [(item, found) for _, item, found in read if isinstance(found, PreparedImage)]
    try:
        return label_batch(model, job, pictures), failures
    except (ValueError, ArithmeticError) as error:
        if len(pictures) == 1:
            return [], [*failures, Failure(pictures[0][0].picture.key, str(error))]
    labels: list[PictureLabels] = []
    errors: list[Exception] = []
    for pair in pictures:
        try:
            labels += label_batch(model, job, [pair])
        except (ValueError, ArithmeticError) as error:
            errors.append(error)
            failures.append(Failure(pair[0].picture.key, str(error)))
    if not labels:  # then it is not the pictures' fault
        raise errors[0]
    return labels, failures


def label_batch(
    model: AlignmentModel, job: Job, pictures: Sequence[tuple[Item, PreparedImage]]
) -> list[PictureLabels]:
    """Labels of some pictures, which go through the network together."""
    asked = [_likely(model, job, *pair) for pair in pictures]
    shown = [place for place, (_, phrases) in enumerate(asked) if phrases]
    aligned = model.align(
        iter([asked[place][0] for place in shown]),
        iter([asked[place][1] for place in shown]),
        config=job.config,
        seed=iter([pictures[place][0].seed for place in shown]),
    )
    with read_ahead(kept_of, aligned, most=2) as kept:
        made = dict(zip(shown, kept, strict=True))
    labels = []
    for place, (item, prepared) in enumerate(pictures):
        mask, scores, record = made.get(place) or _nothing(prepared)
        about = {"candidates": len(item.phrases), "seed": item.seed, **record}
        labels.append(PictureLabels(item.id, mask, scores, about))
    return labels


def _likely(
    model: AlignmentModel, job: Job, item: Item, prepared: PreparedImage
) -> tuple[PreparedImage | EncodedImage, list[Phrase]]:
    """The picture and the classes to align: of many the likely ones, by few timesteps."""
    phrases, most = list(item.phrases), job.candidates
    if job.config.absent == "keep" or most is None or len(phrases) <= most:
        return prepared, phrases
    encoded = model.encode(prepared, config=job.config)
    few = AlignConfig.fast(**{name: getattr(job.config, name) for name in _OF_PRESENCE})
    ranked = model.present(encoded, phrases, config=few, seed=item.seed)
    likely = {candidate.name for candidate in ranked[:most] if candidate.present}
    return encoded, [phrase for phrase in phrases if phrase.name in likely]


Kept = tuple[Any, Any, dict[str, Any]]


def kept_of(aligned: Alignment) -> Kept:
    """The mask, its regions' scores, and the record of a result."""
    mask = aligned.mask()
    regions = connected(mask)
    numbered = regions.numbered()
    scores = (regions.sums(aligned.confidence())[numbered] / regions.areas[numbered]).clip(0, 1)
    step = -(-max(mask.shape) // _GRID)
    coarse = dataclasses.replace(aligned, heatmaps=aligned.heatmaps[:, ::step, ::step]).probs()
    first, second = coarse[0], np.zeros_like(coarse[0])  # the two that are most probable
    for probability in coarse[1:]:
        second = np.maximum(second, np.minimum(first, probability))
        first = np.maximum(first, probability)
    entropy = -(coarse * np.log(coarse.clip(1e-12))).sum(0) / np.log(len(coarse))
    counts = np.bincount(regions.labels, regions.areas, minlength=len(coarse))
    shares = (counts / mask.size).astype(np.float32)[1:]
    verdicts = aligned.trust or (None,) * len(shares)
    classes = [
        {
            "name": phrase.name,
            "phrase": phrase.phrase,
            "share": round(float(share), 6),
            "trust": None if verdict is None else asdict(verdict),
        }
        for phrase, share, verdict in zip(aligned.phrases, shares, verdicts, strict=True)
    ]
    record = {
        "classes": classes,
        "margin": round(float((first - second).mean()), 6),
        "entropy": round(float(entropy.mean()), 6),
    }
    return mask, scores.astype(np.float32), record


def _nothing(picture: PreparedImage) -> Kept:
    """What is kept of a picture in which no class is likely."""
    mask = np.zeros((picture.image.height, picture.image.width), dtype=np.uint8)
    return mask, np.zeros(0, np.float32), {"classes": [], "margin": 1.0, "entropy": 0.0}
