"""From samples to rows of results: every image is measured once for all rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.alignment.collect import attention_maps, images_at_once
from pixalign.alignment.elbo import class_losses
from pixalign.alignment.heatmaps import activation, heatmaps_under
from pixalign.alignment.plan import NoisedTimesteps, plan_prompts, plan_timesteps
from pixalign.alignment.request import EncodedImage
from pixalign.attention.layers import combine_layers
from pixalign.bench.clock import Clock, split, whole
from pixalign.bench.datasets import Sample
from pixalign.bench.measurements import Measurement, Measurements, of_one_length, union
from pixalign.bench.metrics import IGNORE, THRESHOLDS, Tally, nearest_threshold, tally
from pixalign.bench.spec import SpecRow
from pixalign.bench.store import ImageRow
from pixalign.config import AlignConfig
from pixalign.core.checks import check_finite
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import AttentionMaps, Phrase
from pixalign.diffusion.schedule import Steps
from pixalign.methods import METHODS, Method

# Pixels of heatmaps held at once: 1 GiB of float32.
_PIXELS = 2**28

# Whose, of which row, [D, N, H, W] for the D rows of its exponents.
Heatmaps = Iterator[tuple["Subject", Measurement, Tensor]]
Timesteps = tuple[NoisedTimesteps, NoisedTimesteps | None]  # of collecting, and of the ELBO


@dataclass(frozen=True)
class Bench:
    """A model and what is measured on it; ``methods`` are those of rows that are not separable."""

    model: AlignmentModel
    measurements: Measurements
    methods: Mapping[str, Method]

    @classmethod
    def of(cls, rows: Sequence[SpecRow], model: AlignmentModel) -> Bench:
        """Every method is built once, with its options; what it refuses is an error here."""
        built = {row.name: METHODS[row.method](model, **row.options) for row in rows}
        methods = {name: method for name, method in built.items() if not method.separable}
        return cls(model, Measurements.of(rows, model), methods)

    def timesteps(self, config: AlignConfig, subject: Subject, latents: Tensor) -> Timesteps:
        """The timesteps and the noise of an image, of which the seed decides."""
        generator = torch.Generator().manual_seed(subject.seed)
        return plan_timesteps(self.model.backbone.schedule, latents, config, generator)


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
        """int64 [H, W] by number among the sample's own classes: 0, 1 ... N, or IGNORE."""
        numbers = np.zeros(IGNORE + 1, dtype=np.int64)
        numbers[IGNORE] = IGNORE
        for number, label in enumerate(self.labels, 1):
            numbers[label + 1] = number
        return torch.from_numpy(numbers[self.sample.truth])

    @property
    def target_masks(self) -> np.ndarray:
        """uint8 [N, H, W]: 1 on the class, 0 off it, IGNORE where nothing is counted."""
        numbers = torch.arange(1, len(self.labels) + 1)[:, None, None]
        masks = (self.truth == numbers).to(torch.uint8)
        return masks.masked_fill_(self.truth == IGNORE, IGNORE).numpy()

    @property
    def area(self) -> tuple[float, ...]:
        """Each class's share of the picture."""
        pixels = np.bincount(self.sample.truth.ravel(), minlength=IGNORE + 1)
        return tuple(float(pixels[label + 1] / pixels.sum()) for label in self.labels)

    def elbo(self, measurement: Measurement, objective: str) -> Tensor | None:
        """float64 [N]: the ELBO that a row reads; None where it reads none."""
        name = measurement.scoring
        if name is None or name not in self.losses:
            return None
        return measurement.elbo(self.losses[name], self.steps[name], objective)


def measure(bench: Bench, subjects: Sequence[Subject]) -> tuple[list[ImageRow], dict[str, float]]:
    """The rows of some images, and the seconds that each row of the table took for them.

    An image without classes is all background, and asks for nothing. A row's seconds are those of
    the encoding, of its own attention, timesteps and heatmaps, whoever else reads them too.
    """
    rows = bench.measurements.rows
    tallies: dict[int, dict[str, tuple[Tally, ...]]] = {
        subject.index: {row.row.name: (_all_background(subject),) for row in rows}
        for subject in subjects
    }
    clock = Clock(bench.model.backbone.device)
    asked = [subject for subject in subjects if subject.labels]
    for subject, measurement, heatmaps in heatmaps_of(bench, asked, clock):
        labels = [label + 1 for label in subject.labels]
        drawn = tally(heatmaps, subject.truth, labels, subject.index)
        if len(drawn) > 1 and measurement.row.supervised:
            drawn = [_best(drawn, measurement.config)]
        tallies[subject.index][measurement.row.name] = tuple(drawn)
    found = [_row(subject, tallies[subject.index], bench) for subject in subjects]
    return found, {row.row.name: clock.rows[row.row.name] for row in rows}


def _best(drawn: Sequence[Tally], config: AlignConfig) -> Tally:
    """The one that suits the truth best at the config's threshold."""
    assert config.threshold is not None
    at = nearest_threshold(config.threshold)
    return max(drawn, key=lambda one: float(one.at(at).ious().mean()))


def _row(subject: Subject, tallies: Mapping[str, tuple[Tally, ...]], bench: Bench) -> ImageRow:
    losses, maps, known = subject.losses, subject.maps, bench.measurements
    objective = bench.model.backbone.objective
    elbos = [subject.elbo(row, objective) for row in known.rows]
    elbo = next((elbo for elbo in elbos if elbo is not None), None)
    shown = next((maps[name] for name in known.collecting if name in maps), None)
    visible = subject.sample.visible
    return ImageRow(
        index=subject.index,
        key=subject.sample.key,
        labels=subject.labels,
        area=subject.area,
        group=subject.sample.group,
        target=subject.sample.target,
        visible=None if visible is None else tuple(visible[label] for label in subject.labels),
        elbo=None if elbo is None else tuple(elbo.tolist()),
        activation=None if shown is None else tuple(activation(shown.float()).tolist()),
        losses={name: losses[name] for name in known.scoring if name in losses},
        maps={name: maps[name] for name in known.collecting if name in maps},
        tallies=tallies,
    )


def heatmaps_of(bench: Bench, subjects: Sequence[Subject], clock: Clock) -> Heatmaps:
    """Each subject's heatmaps under each row, as they are made: attention is read and let go.

    Images go through the network together where their sizes and the memory allow.
    """
    rows = bench.measurements.rows
    for resize in sorted({row.config.resize for row in rows}) if subjects else ():
        here = [row for row in rows if row.config.resize == resize]
        with clock.charged(whole(row.row.name for row in here)):
            for subject in subjects:
                encoded = bench.model.encode(subject.sample.image, config=here[0].row.config)
                subject.encoded[resize] = encoded
        for group, latents in _alike(subjects, resize):
            _score(bench, group, latents, here, clock)
            for name in dict.fromkeys(row.collecting for row in here):
                readers = [row for row in here if row.collecting == name]
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
    bench: Bench,
    group: Sequence[Subject],
    latents: Tensor,
    here: Sequence[Measurement],
    clock: Clock,
) -> None:
    """Losses at the union of all timesteps; a row is charged the part that it reads."""
    backbone, batch_size = bench.model.backbone, bench.model.batch_size
    by_text: dict[tuple[str, str], dict[str, AlignConfig]] = {}
    for name in dict.fromkeys(row.scoring for row in here if row.scoring is not None):
        config = bench.measurements.scoring[name]
        by_text.setdefault((config.template, config.elbo_text), {})[name] = config
    for configs in by_text.values():
        any_config = next(iter(configs.values()))
        plans = [plan_prompts(backbone, subject.phrases, None, any_config) for subject in group]
        joint = []
        for subject in group:
            planned = {n: bench.timesteps(c, subject, latents[:1])[1] for n, c in configs.items()}
            scoring = {name: noised for name, noised in planned.items() if noised}
            joint.append(union(scoring))
            subject.steps.update({name: noised.steps for name, noised in scoring.items()})
        even = of_one_length([together for together, _ in joint])
        most = len(even[0].steps) * len(group)
        parts = {name: sum(len(indices[name]) for _, indices in joint) / most for name in configs}
        shares = {row.row.name: parts[row.scoring] for row in here if row.scoring in parts}
        with clock.charged(shares):
            quiet = Progress(0, "", show=False)
            measured = class_losses(backbone, latents, plans, even, batch_size, quiet)
        for subject, (_, indices), losses in zip(group, joint, measured, strict=True):
            with _naming(subject):
                check_finite(losses, "losses", backbone.dtype)
            subject.losses.update({name: losses[:, own] for name, own in indices.items()})


def _by_attention(
    bench: Bench,
    group: Sequence[Subject],
    latents: Tensor,
    readers: Sequence[Measurement],
    clock: Clock,
) -> Heatmaps:
    """What rows that read the same attention make of it, as many images as memory holds."""
    backbone, config = bench.model.backbone, readers[0].config
    most = images_at_once(backbone, latents[:1], config.self_attention)
    for first in range(0, len(group), most):
        part, shown = group[first : first + most], latents[first : first + most]
        collected = _collected(bench, part, shown, readers, clock)
        for subject, maps in zip(part, collected, strict=True):
            for same in _same_weights(readers):
                yield from _of_weights(bench, subject, maps, same, clock)
        del collected, maps  # before more is read


def _collected(
    bench: Bench,
    group: Sequence[Subject],
    latents: Tensor,
    readers: Sequence[Measurement],
    clock: Clock,
) -> list[AttentionMaps]:
    """The attention of images that are collected together."""
    backbone, config = bench.model.backbone, readers[0].config
    with clock.charged(whole(row.row.name for row in readers)):
        plans = [plan_prompts(backbone, subject.phrases, None, config) for subject in group]
        timesteps = [bench.timesteps(config, subject, latents[:1])[0] for subject in group]
        quiet, batch_size = Progress(0, "", show=False), bench.model.batch_size
        return attention_maps(backbone, latents, plans, timesteps, config, batch_size, quiet)


def _of_weights(
    bench: Bench,
    subject: Subject,
    maps: AttentionMaps,
    same: Sequence[Measurement],
    clock: Clock,
) -> Heatmaps:
    """The heatmaps of rows that give the layers of some attention the same weights."""
    backbone, weights = bench.model.backbone, same[0].config.cross_weights
    assert weights is not None
    assert same[0].collecting is not None
    combined = combine_layers(maps.cross, maps.layers, weights)
    with _naming(subject):
        check_finite(combined, "attention maps", backbone.dtype)
    subject.maps.setdefault(same[0].collecting, combined.cpu())
    count, (height, width) = len(subject.labels), subject.size
    most = max(1, _PIXELS // (count * height * width))
    for first in range(0, len(same), most):
        part = same[first : first + most]
        with clock.charged(split(row.row.name for row in part)):
            powers = [
                row.exponents(subject.elbo(row, backbone.objective), count, subject.seed)
                for row in part
            ]
            heatmaps = heatmaps_under(maps, weights, torch.cat(powers), subject.size)
        each = torch.split(heatmaps, [len(drawn) for drawn in powers])
        yield from ((subject, *pair) for pair in zip(part, each, strict=True))


def _by_methods(
    bench: Bench, group: Sequence[Subject], rows: Sequence[Measurement], clock: Clock
) -> Heatmaps:
    """What other methods find, under the scores that the paper's would have."""
    for measurement in rows:
        method, config = bench.methods[measurement.row.name], measurement.config
        for subject in group:
            options: dict[str, Any] = {"config": config, "seed": subject.seed}
            if config.calibrated:
                elbo = subject.elbo(measurement, bench.model.backbone.objective)
                options["scores"] = measurement.scores(elbo, len(subject.labels)).numpy()
            if method.supervised:
                options["target_masks"] = subject.target_masks
            with clock.charged(whole([measurement.row.name])), _naming(subject):
                result = method.align(subject.encoded[config.resize], subject.phrases, **options)
            yield subject, measurement, torch.from_numpy(result.heatmaps)[None]


def _same_weights(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """Rows that give the layers the same weights, those of the first row first."""
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(repr(row.config.cross_weights), []).append(row)
    return list(groups.values())


@contextmanager
def _naming(subject: Subject) -> Iterator[None]:
    """What turns out to be no number is told with the image's key."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"image {subject.sample.key!r}: {error}") from error


def _all_background(subject: Subject) -> Tally:
    """An image without classes: every pixel that counts is background, and is called so."""
    pixels = torch.tensor([int((subject.sample.truth != IGNORE).sum())])
    counts = pixels[:, None].expand(1, len(THRESHOLDS)).contiguous()
    label = torch.zeros(1, dtype=torch.int64)
    return Tally(torch.full_like(label, subject.index), label, pixels, counts, counts)
