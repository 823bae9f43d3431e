"""From samples to rows of results: every image is measured once for all rows of a table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.align import Aligner, EncodedImage
from pixalign.baselines import method
from pixalign.bench.points import Point, Points, is_centred, of_one_length, scores, union
from pixalign.bench.store import ImageRow
from pixalign.calibrate import exponents
from pixalign.collect import images_at_once
from pixalign.config import AlignConfig
from pixalign.datasets import Sample
from pixalign.heatmaps import combine_layers, heatmaps_under
from pixalign.measure import attention_maps, class_losses
from pixalign.metrics import IGNORE, THRESHOLDS, Tally, tally
from pixalign.plan import Visit, plan_visits, plan_words
from pixalign.progress import Progress
from pixalign.schedule import Steps
from pixalign.types import AttentionMaps, Phrase

# Pixels of heatmaps held at once: 1 GiB of float32.
_PIXELS = 2**28


class Subject:
    """A sample with its number in the dataset, and what was measured of it."""

    def __init__(self, sample: Sample, index: int, classes: Sequence[str], seed: int) -> None:
        self.sample, self.index, self.seed = sample, index, seed
        self.labels = sample.present
        self.phrases = [
            Phrase(classes[label], sample.phrases.get(label, classes[label]))
            for label in self.labels
        ]
        self.encoded: dict[str, EncodedImage] = {}  # by the config's resize
        self.maps: dict[str, AttentionMaps] = {}
        self.losses: dict[str, Tensor] = {}
        self.steps: dict[str, Steps] = {}

    @property
    def truth(self) -> Tensor:
        """int64 [H, W] by place among the sample's own classes: 0, 1 ... N, or IGNORE."""
        places = np.zeros(IGNORE + 1, dtype=np.int64)
        places[IGNORE] = IGNORE
        for place, label in enumerate(self.labels):
            places[label + 1] = place + 1
        return torch.from_numpy(places[self.sample.truth])

    @property
    def area(self) -> tuple[float, ...]:
        """Each class's share of the picture."""
        pixels = np.bincount(self.sample.truth.ravel(), minlength=IGNORE + 1)
        return tuple(float(pixels[label + 1] / pixels.sum()) for label in self.labels)


def measure(
    aligner: Aligner, points: Points, subjects: Sequence[Subject]
) -> tuple[list[ImageRow], dict[str, float]]:
    """The rows of some images, and the seconds that each row of the table took for them.

    An image without classes is all background, and asks for nothing. Rows of the paper's method
    share what they read, and each has the seconds of it all.
    """
    started = time.perf_counter()
    asked = [subject for subject in subjects if subject.labels]
    ask_network(aligner, points, asked)
    shared = time.perf_counter() - started
    spent = {point.row.name: shared * _shares(point) for point in points.points}
    found = [_row(aligner, subject, points, spent) for subject in subjects]
    return found, spent


def _shares(point: Point) -> bool:
    """Whether the row reads what was measured for all."""
    return point.collecting is not None or point.scoring is not None


def ask_network(aligner: Aligner, points: Points, subjects: Sequence[Subject]) -> None:
    """Measure all that the points share; images go through together where their sizes allow."""
    for resize in sorted({point.config.resize for point in points.points}) if subjects else ():
        collecting, scoring = _with(points.collecting, resize), _with(points.scoring, resize)
        config = next(p.config for p in points.points if p.config.resize == resize)
        for subject in subjects:
            subject.encoded[resize] = aligner.encode(subject.sample.image, config=config)
        for group, latents in _alike(aligner, subjects, config):
            _measure_group(aligner, group, latents, collecting, scoring)


def _with(configs: Mapping[str, AlignConfig], resize: str) -> dict[str, AlignConfig]:
    return {name: config for name, config in configs.items() if config.resize == resize}


def _alike(
    aligner: Aligner, subjects: Sequence[Subject], config: AlignConfig
) -> Iterator[tuple[list[Subject], Tensor]]:
    """Subjects whose latents have one shape, as many as are collected together, and the latents."""

    def shape(subject: Subject) -> tuple[int, ...]:
        return tuple(subject.encoded[config.resize].latents.shape)

    for _, same in groupby(sorted(subjects, key=shape), key=shape):
        members = list(same)
        latents = [member.encoded[config.resize].latents for member in members]
        most = images_at_once(aligner.backbone, latents[0], config.self_attention)
        for first in range(0, len(members), most):
            part = slice(first, first + most)
            yield members[part], torch.cat(latents[part])


def _measure_group(
    aligner: Aligner,
    group: Sequence[Subject],
    latents: Tensor,
    collecting: Mapping[str, AlignConfig],
    scoring: Mapping[str, AlignConfig],
) -> None:
    """Attention under every collecting config, and losses at the union of all timesteps."""
    backbone, batch_size = aligner.backbone, aligner.batch_size
    quiet = Progress(0, "", show=False)

    def visits(config: AlignConfig) -> list[tuple[Visit, Visit | None]]:
        return [
            plan_visits(
                backbone.schedule, latents[:1], config, torch.Generator().manual_seed(one.seed)
            )
            for one in group
        ]

    for name, config in collecting.items():
        words = [plan_words(backbone, one.phrases, None, config) for one in group]
        shown = [pair[0] for pair in visits(config)]
        found = attention_maps(backbone, latents, words, shown, config, batch_size, quiet)
        for one, maps in zip(group, found, strict=True):
            one.maps[name] = maps
    by_text: dict[tuple[str, str], dict[str, AlignConfig]] = {}
    for name, config in scoring.items():
        by_text.setdefault((config.template, config.elbo_text), {})[name] = config
    for configs in by_text.values():
        any_config = next(iter(configs.values()))
        words = [plan_words(backbone, one.phrases, None, any_config) for one in group]
        planned = {name: [pair[1] for pair in visits(config)] for name, config in configs.items()}
        joint = []
        for image, one in enumerate(group):
            own = {name: each[image] for name, each in planned.items()}
            whole, places = union({name: visit for name, visit in own.items() if visit})
            joint.append((whole, places))
            one.steps.update({name: visit.steps for name, visit in own.items() if visit})
        even = of_one_length([whole for whole, _ in joint])
        all_losses = class_losses(backbone, latents, words, even, batch_size, quiet)
        for one, (_, places), losses in zip(group, joint, all_losses, strict=True):
            one.losses.update({name: losses[:, mine] for name, mine in places.items()})


def _row(aligner: Aligner, subject: Subject, points: Points, spent: dict[str, float]) -> ImageRow:
    """Heatmaps for every row of the table, and the pixels counted; adds the seconds spent."""
    tallies = {point.row.name: _all_background(subject) for point in points.points}
    truth, labels = subject.truth, [label + 1 for label in subject.labels]
    started = time.perf_counter()
    for name, heatmaps in heatmaps_of(aligner, subject, points) if labels else ():
        spent[name] += time.perf_counter() - started
        tallies[name] = tally(heatmaps[None], truth, labels, subject.index)[0]
        started = time.perf_counter()
    maps = {}
    for name, config in points.collecting.items() if labels else ():
        assert config.cross_weights is not None
        found = subject.maps[name]
        maps[name] = combine_layers(found.cross, found.layers, config.cross_weights).cpu()
    return ImageRow(
        index=subject.index,
        key=subject.sample.key,
        labels=subject.labels,
        area=subject.area,
        group=subject.sample.group,
        target=subject.sample.target,
        losses={name: losses.cpu() for name, losses in subject.losses.items()},
        maps=maps,
        tallies=tallies,
    )


def heatmaps_of(aligner: Aligner, subject: Subject, points: Points) -> Iterator[tuple[str, Tensor]]:
    """Each row's name and heatmaps [N, H, W], of a subject whose measurements are made."""
    objective = aligner.backbone.objective
    size = (subject.sample.image.height, subject.sample.image.width)
    most = max(1, _PIXELS // (len(subject.labels) * size[0] * size[1]))
    for group in _same_maps(points.points):
        assert group[0].collecting is not None
        maps, weights = subject.maps[group[0].collecting], group[0].config.cross_weights
        for first in range(0, len(group), most):
            part = group[first : first + most]
            powers = [
                exponents(_scores(subject, point, objective), is_centred(point)) for point in part
            ]
            heatmaps = heatmaps_under(maps, weights, torch.stack(powers), size)
            yield from zip([point.row.name for point in part], heatmaps, strict=True)
    for point in points.points:
        if point.collecting is None:
            yield point.row.name, _by_method(aligner, subject, point, objective)


def _by_method(aligner: Aligner, subject: Subject, point: Point, objective: str) -> Tensor:
    """What another method finds, under the scores that the paper's would have."""
    how = method(point.row.method, aligner, **point.row.options)
    config = replace(point.config, centred=is_centred(point))
    options: dict[str, Any] = {"config": config, "seed": subject.seed}
    if config.calibrate:
        options["scores"] = _scores(subject, point, objective).numpy()
    if how.supervised:
        truth = subject.truth
        places = range(1, len(subject.labels) + 1)
        options["target_masks"] = torch.stack([truth == place for place in places]).numpy()
    found = how.align(subject.encoded[config.resize], subject.phrases, **options)
    return torch.from_numpy(found.heatmaps)


def _same_maps(points: Sequence[Point]) -> list[list[Point]]:
    """Points that read the same attention with the same weights."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.collecting is not None:
            key = (point.collecting, repr(point.config.cross_weights))
            groups.setdefault(key, []).append(point)
    return list(groups.values())


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
