"""From samples to rows of results: every image is measured once for all rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.alignment.calibrate import exponents
from pixalign.alignment.collect import attention_maps, images_at_once
from pixalign.alignment.elbo import class_losses
from pixalign.alignment.heatmaps import heatmaps_under
from pixalign.alignment.plan import NoisedTimesteps, plan_prompts, plan_timesteps
from pixalign.alignment.request import EncodedImage
from pixalign.attention.layers import combine_layers
from pixalign.bench.clock import Clock, split, whole
from pixalign.bench.datasets import Sample
from pixalign.bench.metrics import IGNORE, THRESHOLDS, Tally, tally
from pixalign.bench.points import Point, Points, is_centred, of_one_length, scores, union
from pixalign.bench.spec import Row
from pixalign.bench.store import ImageRow
from pixalign.config import AlignConfig
from pixalign.core.checks import check_finite
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel as Aligner
from pixalign.core.values import AttentionMaps, Phrase
from pixalign.diffusion.schedule import Steps
from pixalign.methods import METHODS, Method

# Pixels of heatmaps held at once: 1 GiB of float32.
_PIXELS = 2**28

Heatmaps = Iterator[tuple["Subject", str, Tensor]]  # whose, of which row, [N, H, W]


@dataclass(frozen=True)
class Bench:
    """A model and the rows that are measured on it; ``methods`` are those of the other methods."""

    aligner: Aligner
    points: Points
    methods: Mapping[str, Method]

    @classmethod
    def of(cls, rows: Sequence[Row], aligner: Aligner) -> Bench:
        """Every method is built once, with its options; what it refuses is an error here."""
        methods = {
            row.name: METHODS[row.method](aligner, **row.options)
            for row in rows
            if row.method != "elbo"
        }
        return cls(aligner, Points.of(rows, aligner.backbone.family, aligner.settings), methods)

    def visits(self, config: AlignConfig, subject: Subject, latents: Tensor) -> Visits:
        """The timesteps and the noise of an image, of which the seed decides."""
        own = torch.Generator().manual_seed(subject.seed)
        return plan_timesteps(self.aligner.backbone.schedule, latents, config, own)


Visits = tuple[NoisedTimesteps, NoisedTimesteps | None]


def image_seed(seed: int, key: str) -> int:
    """Where an image's noise begins: the same alone, after a stop, and in any process."""
    digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # below 2**63


class Subject:
    """A sample with its number in the dataset, and what was measured of it."""

    def __init__(self, sample: Sample, index: int, classes: Sequence[str], seed: int) -> None:
        self.sample, self.index = sample, index
        self.seed = image_seed(seed, sample.key)
        self.labels = sample.present
        self.phrases = [
            Phrase(classes[label], sample.phrases.get(label, classes[label]))
            for label in self.labels
        ]
        self.encoded: dict[str, EncodedImage] = {}  # by the config's resize
        self.losses: dict[str, Tensor] = {}
        self.steps: dict[str, Steps] = {}
        self.maps: dict[str, Tensor] = {}  # small ones: all layers in one

    @property
    def size(self) -> tuple[int, int]:
        """The picture's (height, width)."""
        return self.sample.image.height, self.sample.image.width

    @cached_property
    def truth(self) -> Tensor:
        """int64 [H, W] by place among the sample's own classes: 0, 1 ... N, or IGNORE."""
        places = np.zeros(IGNORE + 1, dtype=np.int64)
        places[IGNORE] = IGNORE
        for place, label in enumerate(self.labels):
            places[label + 1] = place + 1
        return torch.from_numpy(places[self.sample.truth])

    @property
    def target_masks(self) -> np.ndarray:
        """uint8 [N, H, W]: 1 on the class, 0 off it, IGNORE where nothing is counted."""
        places = torch.arange(1, len(self.labels) + 1)[:, None, None]
        masks = (self.truth == places).to(torch.uint8)
        return masks.masked_fill_(self.truth == IGNORE, IGNORE).numpy()

    @property
    def area(self) -> tuple[float, ...]:
        """Each class's share of the picture."""
        pixels = np.bincount(self.sample.truth.ravel(), minlength=IGNORE + 1)
        return tuple(float(pixels[label + 1] / pixels.sum()) for label in self.labels)


def measure(bench: Bench, subjects: Sequence[Subject]) -> tuple[list[ImageRow], dict[str, float]]:
    """The rows of some images, and the seconds that each row of the table took for them.

    An image without classes is all background, and asks for nothing. A row's seconds are those of
    the encoding, of its own attention, timesteps and heatmaps, whoever else reads them too.
    """
    names = [point.row.name for point in bench.points.points]
    tallies = [dict.fromkeys(names, _all_background(subject)) for subject in subjects]
    own = {subject.index: found for subject, found in zip(subjects, tallies, strict=True)}
    clock = Clock(bench.aligner.backbone.device)
    asked = [subject for subject in subjects if subject.labels]
    for subject, name, heatmaps in heatmaps_of(bench, asked, clock):
        labels = [label + 1 for label in subject.labels]
        own[subject.index][name] = tally(heatmaps[None], subject.truth, labels, subject.index)[0]
    rows = [_row(*pair, bench.points) for pair in zip(subjects, tallies, strict=True)]
    return rows, {name: clock.rows[name] for name in names}


def _row(subject: Subject, tallies: Mapping[str, Tally], points: Points) -> ImageRow:
    losses, maps = subject.losses, subject.maps
    return ImageRow(
        index=subject.index,
        key=subject.sample.key,
        labels=subject.labels,
        area=subject.area,
        group=subject.sample.group,
        target=subject.sample.target,
        losses={name: losses[name] for name in points.scoring if name in losses},
        maps={name: maps[name] for name in points.collecting if name in maps},
        tallies=tallies,
    )


def heatmaps_of(bench: Bench, subjects: Sequence[Subject], clock: Clock) -> Heatmaps:
    """Each subject's heatmaps under each row, as they are made: attention is read and let go.

    Images go through the network together where their sizes and the memory allow.
    """
    points = bench.points.points
    for resize in sorted({point.config.resize for point in points}) if subjects else ():
        here = [point for point in points if point.config.resize == resize]
        with clock.charged(whole(point.row.name for point in here)):
            for one in subjects:
                one.encoded[resize] = bench.aligner.encode(one.sample.image, config=here[0].config)
        for group, latents in _alike(subjects, resize):
            _score(bench, group, latents, here, clock)
            for name in dict.fromkeys(point.collecting for point in here):
                readers = [point for point in here if point.collecting == name]
                if name is None:
                    yield from _by_methods(bench, group, readers, clock)
                else:
                    yield from _by_attention(bench, group, latents, readers, clock)


def _alike(subjects: Sequence[Subject], resize: str) -> Iterator[tuple[list[Subject], Tensor]]:
    """Subjects whose latents have one shape, and the latents [B, C, h, w]."""

    def shape(subject: Subject) -> tuple[int, ...]:
        return tuple(subject.encoded[resize].latents.shape)

    for _, same in groupby(sorted(subjects, key=shape), key=shape):
        members = list(same)
        yield members, torch.cat([member.encoded[resize].latents for member in members])


def _score(
    bench: Bench, group: Sequence[Subject], latents: Tensor, here: Sequence[Point], clock: Clock
) -> None:
    """Losses at the union of all timesteps; a row is charged the part that it reads."""
    backbone, batch_size = bench.aligner.backbone, bench.aligner.batch_size
    by_text: dict[tuple[str, str], dict[str, AlignConfig]] = {}
    for name in dict.fromkeys(point.scoring for point in here if point.scoring is not None):
        config = bench.points.scoring[name]
        by_text.setdefault((config.template, config.elbo_text), {})[name] = config
    for configs in by_text.values():
        any_config = next(iter(configs.values()))
        words = [plan_prompts(backbone, one.phrases, None, any_config) for one in group]
        joint = []
        for one in group:
            planned = {n: bench.visits(c, one, latents[:1])[1] for n, c in configs.items()}
            own = {name: visit for name, visit in planned.items() if visit}
            joint.append(union(own))
            one.steps.update({name: visit.steps for name, visit in own.items()})
        even = of_one_length([together for together, _ in joint])
        most = len(even[0].steps) * len(group)
        parts = {name: sum(len(places[name]) for _, places in joint) / most for name in configs}
        shares = {p.row.name: parts[p.scoring] for p in here if p.scoring in parts}
        with clock.charged(shares):
            quiet = Progress(0, "", show=False)
            found = class_losses(backbone, latents, words, even, batch_size, quiet)
        for one, (_, places), losses in zip(group, joint, found, strict=True):
            with _naming(one):
                check_finite(losses, "losses", backbone.dtype)
            one.losses.update({name: losses[:, mine] for name, mine in places.items()})


def _by_attention(
    bench: Bench, group: Sequence[Subject], latents: Tensor, readers: Sequence[Point], clock: Clock
) -> Heatmaps:
    """What points that read the same attention make of it, as many images as memory holds."""
    config = readers[0].config
    most = images_at_once(bench.aligner.backbone, latents[:1], config.self_attention)
    for first in range(0, len(group), most):
        part = slice(first, first + most)
        yield from _by_part(bench, group[part], latents[part], readers, clock)


def _by_part(
    bench: Bench, group: Sequence[Subject], latents: Tensor, readers: Sequence[Point], clock: Clock
) -> Heatmaps:
    """What some points make of the attention of images that are collected together."""
    backbone, config = bench.aligner.backbone, readers[0].config
    with clock.charged(whole(point.row.name for point in readers)):
        words = [plan_prompts(backbone, one.phrases, None, config) for one in group]
        visits = [bench.visits(config, one, latents[:1])[0] for one in group]
        quiet, batch_size = Progress(0, "", show=False), bench.aligner.batch_size
        found = attention_maps(backbone, latents, words, visits, config, batch_size, quiet)
    for one, maps in zip(group, found, strict=True):
        for same in _same_weights(readers):
            yield from _of_weights(bench, one, maps, same, clock)


def _of_weights(
    bench: Bench, subject: Subject, maps: AttentionMaps, same: Sequence[Point], clock: Clock
) -> Heatmaps:
    """The heatmaps of points that give the layers of some attention the same weights."""
    backbone, weights = bench.aligner.backbone, same[0].config.cross_weights
    assert weights is not None
    assert same[0].collecting is not None
    combined = combine_layers(maps.cross, maps.layers, weights)
    with _naming(subject):
        check_finite(combined, "attention maps", backbone.dtype)
    subject.maps.setdefault(same[0].collecting, combined.cpu())
    most = max(1, _PIXELS // (len(subject.labels) * subject.size[0] * subject.size[1]))
    for first in range(0, len(same), most):
        part = same[first : first + most]
        names = [point.row.name for point in part]
        with clock.charged(split(names)):
            powers = [
                exponents(_scores(subject, point, backbone.objective), is_centred(point))
                for point in part
            ]
            heatmaps = heatmaps_under(maps, weights, torch.stack(powers), subject.size)
        yield from ((subject, *pair) for pair in zip(names, heatmaps, strict=True))


def _by_methods(
    bench: Bench, group: Sequence[Subject], points: Sequence[Point], clock: Clock
) -> Heatmaps:
    """What other methods find, under the scores that the paper's would have."""
    objective = bench.aligner.backbone.objective
    for point in points:
        how, config = bench.methods[point.row.name], point.config
        config = replace(config, centred=is_centred(point))
        for subject in group:
            options: dict[str, Any] = {"config": config, "seed": subject.seed}
            if config.calibrate:
                options["scores"] = _scores(subject, point, objective).numpy()
            if how.supervised:
                options["target_masks"] = subject.target_masks
            with clock.charged(whole([point.row.name])), _naming(subject):
                found = how.align(subject.encoded[config.resize], subject.phrases, **options)
            yield subject, point.row.name, torch.from_numpy(found.heatmaps)


def _same_weights(points: Sequence[Point]) -> list[list[Point]]:
    """Points that give the layers the same weights, those of the first point first."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(point.config.cross_weights), []).append(point)
    return list(groups.values())


@contextmanager
def _naming(subject: Subject) -> Iterator[None]:
    """What turns out to be no number is told with the image's key."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"image {subject.sample.key!r}: {error}") from error


def _scores(subject: Subject, point: Point, objective: str) -> Tensor:
    losses = subject.losses.get(point.scoring) if point.scoring else None
    steps = subject.steps.get(point.scoring) if point.scoring else None
    return scores(point, losses, steps, objective, len(subject.labels))


def _all_background(subject: Subject) -> Tally:
    """An image without classes: every pixel that counts is background, and is called so."""
    pixels = torch.tensor([int((subject.sample.truth != IGNORE).sum())])
    counts = pixels[:, None].expand(1, len(THRESHOLDS)).contiguous()
    label = torch.zeros(1, dtype=torch.int64)
    return Tally(torch.full_like(label, subject.index), label, pixels, counts, counts)
