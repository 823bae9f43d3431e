"""Units of pictures in, shards out: what one process does with one model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby, tee
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pixalign.alignment.collect import images_at_once
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
UNITS = 2  # that end at a time, while the next is in the network
_KEPT = 4  # results that wait for what is kept of them
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

    ``record`` is what its labels depend on, as plain values. So many pictures go ``together``.
    """

    record: Mapping[str, Any]
    sizes: SizesSeen
    together: int

    @classmethod
    def of(cls, model: AlignmentModel, config: AlignConfig) -> ModelFacts:
        """Those of a model under a config."""
        about = model.record()
        about.pop("device")
        about["weights"] = fingerprint(model.backbone.pipe)
        resolved = model.resolve(config)
        together = UNIT
        if model.backbone.device.type != "cpu":  # small networks need many to be busy
            shape = model.backbone.latent_shape(model.backbone.native_size)
            latents = torch.empty(1, *shape, device="meta")
            most = images_at_once(model.backbone, latents, resolved.self_attention)
            together = max(UNIT, most)
        record = {"model": about, "config": resolved.to_dict()}
        return cls(record, SizesSeen.of(model.backbone), together)


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
Shown = tuple[PreparedImage | EncodedImage, list[Phrase]]  # a picture, and what to look for
Kept = tuple[Any, Any, dict[str, Any]]  # a mask, its regions' scores, and the record


@dataclass(eq=False)
class _InHand:
    """Pictures of a unit on their way, which share batches with no others.

    ``shown`` [len(pictures)] is what the network is asked, and ``made`` what came of those with
    classes to look for, in their order. ``failed`` is why nothing was asked.
    """

    unit: Unit
    pictures: list[tuple[Item, PreparedImage]]
    failures: list[Failure]
    shown: list[Shown] = field(default_factory=list)
    made: list[Kept] = field(default_factory=list)
    failed: Exception | None = None

    @classmethod
    def of(cls, read: Sequence[Read]) -> _InHand:
        """A unit whose pictures were read."""
        pictures = [(item, found) for _, item, found in read if isinstance(found, PreparedImage)]
        failures = [found for _, _, found in read if isinstance(found, Failure)]
        return cls(read[0][0], pictures, failures)

    def asked(self, model: AlignmentModel, job: Job) -> Iterator[tuple[Any, list[Phrase], int]]:
        """What the network is shown: pictures with their classes and seeds."""
        try:
            self.shown = [_likely(model, job, *pair) for pair in self.pictures]
        except (ValueError, ArithmeticError) as error:
            self.shown, self.failed = [], error
        for (item, _), (picture, phrases) in zip(self.pictures, self.shown, strict=False):
            if phrases:
                yield replace(picture, group=self.unit.name), phrases, item.seed

    @property
    def done(self) -> bool:
        """Whether nothing of it is still to be seen by the network."""
        return len(self.made) == sum(bool(phrases) for _, phrases in self.shown)

    def labels(self) -> list[PictureLabels]:
        """What is kept of its pictures."""
        made, kept = iter(self.made), []
        for (item, prepared), (_, phrases) in zip(self.pictures, self.shown, strict=True):
            mask, scores, record = next(made) if phrases else _nothing(prepared)
            about = {"candidates": len(item.phrases), "seed": item.seed, **record}
            kept.append(PictureLabels(item.id, mask, scores, about))
        return kept


def label_units(model: AlignmentModel, job: Job, units: Iterable[Unit]) -> Iterator[UnitReport]:
    """Label units in their order, as one stream through the network.

    Threads read the next pictures and write the last shards meanwhile.
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

    def write(ended: tuple[_InHand, list[PictureLabels]]) -> UnitReport:
        hand, labels = ended
        if labels:
            write_shard(job.shards, hand.unit.name, labels)
        return UnitReport(hand.unit, tuple(each.id for each in labels), tuple(hand.failures))

    pairs = ((unit, item) for unit in units for item in unit.items)
    with read_ahead(read, pairs, most=UNIT) as pictures:
        hands = (_InHand.of(list(group)) for _, group in groupby(pictures, key=lambda x: x[0]))
        labelled = _labelled(model, job, hands)
        with read_ahead(write, labelled, most=UNITS, at_once=True) as reports:
            yield from reports


def _labelled(
    model: AlignmentModel, job: Job, hands: Iterator[_InHand]
) -> Iterator[tuple[_InHand, list[PictureLabels]]]:
    """Each with its labels; pictures that fail do not take others along."""
    begun: deque[_InHand] = deque()
    more = True
    while more:
        again = tuple(begun)
        begun.clear()
        for hand in again:
            hand.made.clear()
        try:
            for hand in _streamed(model, job, chain(again, hands), begun):
                yield hand, hand.labels()
            more = False
        except (ValueError, ArithmeticError) as error:  # all before the first have ended well
            if not begun:
                raise
            failed = error
        if more:
            hand = begun.popleft()
            yield hand, _one_by_one(model, job, hand, failed)


def _streamed(
    model: AlignmentModel, job: Job, hands: Iterable[_InHand], begun: deque[_InHand]
) -> Iterator[_InHand]:
    """Those that the network is done with, in their order; ``begun`` are those it is not."""

    def shown() -> Iterator[tuple[Any, list[Phrase], int]]:
        for hand in hands:
            begun.append(hand)
            yield from hand.asked(model, job)

    pictures, classes, seeds = tee(shown(), 3)
    aligned = model.align(
        (picture for picture, _, _ in pictures),
        (phrases for _, phrases, _ in classes),
        config=job.config,
        seed=(seed for _, _, seed in seeds),
    )
    with read_ahead(kept_of, aligned, most=_KEPT, at_once=True) as kept:
        for each in kept:
            while begun[0].done:
                yield _ended(begun)
            begun[0].made.append(each)
            if begun[0].done:
                yield _ended(begun)
    while begun:
        yield _ended(begun)


def _ended(begun: deque[_InHand]) -> _InHand:
    if begun[0].failed is not None:
        raise begun[0].failed
    return begun.popleft()


def _one_by_one(
    model: AlignmentModel, job: Job, hand: _InHand, error: Exception
) -> list[PictureLabels]:
    """Labels of the pictures that do not fail, and the others noted; together they ended so.

    Where all fail, it is not the pictures' fault.
    """
    labels: list[PictureLabels] = []
    if len(hand.pictures) == 1:
        hand.failures.append(Failure(hand.pictures[0][0].picture.key, str(error)))
        return labels
    for pair in hand.pictures:
        one = _InHand(hand.unit, [pair], [])
        try:
            for _ in _streamed(model, job, [one], deque()):
                labels += one.labels()
        except (ValueError, ArithmeticError) as reason:
            error = reason
            hand.failures.append(Failure(pair[0].picture.key, str(reason)))
    if not labels:
        raise error
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


def kept_of(aligned: Alignment) -> Kept:
    """The mask, its regions' scores, and the record of a result."""
    mask = aligned.mask()
    regions = connected(mask)
    numbered = regions.numbered()
    scores = (regions.sums(aligned.confidence())[numbered] / regions.areas[numbered]).clip(0, 1)
    step = -(-max(mask.shape) // _GRID)
    coarse = replace(aligned, heatmaps=aligned.heatmaps[:, ::step, ::step]).probs()
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
