"""From samples to rows of results: every image is measured once for all rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from pixalign.align import Aligner, EncodedImage
from pixalign.bench.points import Point, Points, of_one_length, powers, union
from pixalign.bench.store import ImageRow
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


def measure(aligner: Aligner, points: Points, subjects: Sequence[Subject]) -> list[ImageRow]:
    """The rows of some images; one without classes is all background, and asks for nothing."""
    ask_network(aligner, points, [subject for subject in subjects if subject.labels])
    return [_row(subject, points, aligner.backbone.objective) for subject in subjects]


def ask_network(aligner: Aligner, points: Points, subjects: Sequence[Subject]) -> None:
    """Measure all that the points need; images go through together where their sizes allow."""
    if subjects:
        for resize in sorted({config.resize for config in points.collecting.values()}):
            collecting = _with(points.collecting, resize)
            scoring = _with(points.scoring, resize)
            any_config = next(iter(collecting.values()))
            encoded = [aligner.encode(s.sample.image, config=any_config) for s in subjects]
            for group in _alike(aligner, subjects, encoded, any_config):
                _measure_group(aligner, *group, collecting, scoring)


def _with(configs: Mapping[str, AlignConfig], resize: str) -> dict[str, AlignConfig]:
    return {name: config for name, config in configs.items() if config.resize == resize}


def _alike(
    aligner: Aligner,
    subjects: Sequence[Subject],
    encoded: Sequence[EncodedImage],
    config: AlignConfig,
) -> Iterator[tuple[list[Subject], Tensor]]:
    """Subjects whose latents have one shape, as many as are collected together, and the latents."""
    pairs = sorted(
        zip(subjects, encoded, strict=True), key=lambda pair: tuple(pair[1].latents.shape)
    )
    for _, same in groupby(pairs, key=lambda pair: pair[1].latents.shape):
        members = list(same)
        most = images_at_once(aligner.backbone, members[0][1].latents, config.self_attention)
        for first in range(0, len(members), most):
            part = members[first : first + most]
            yield [subject for subject, _ in part], torch.cat([one.latents for _, one in part])


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


def _row(subject: Subject, points: Points, objective: str) -> ImageRow:
    """Lines 6 to 9 for every row of the table, and the pixels counted."""
    tallies = (
        dict(_tallies(subject, points, objective))
        if subject.labels
        else {point.row.name: _all_background(subject) for point in points.points}
    )
    maps = {}
    for name, config in points.collecting.items() if subject.labels else ():
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
        tallies={point.row.name: tallies[point.row.name] for point in points.points},
    )


def _tallies(subject: Subject, points: Points, objective: str) -> Iterator[tuple[str, Tally]]:
    """Each row's name and counts."""
    truth, labels = subject.truth, [label + 1 for label in subject.labels]
    for name, heatmaps in heatmaps_of(subject, points, objective):
        yield name, tally(heatmaps[None], truth, labels, subject.index)[0]


def heatmaps_of(subject: Subject, points: Points, objective: str) -> Iterator[tuple[str, Tensor]]:
    """Each row's name and heatmaps [N, H, W]; rows that differ in exponents only go together."""
    height, width = subject.sample.truth.shape
    most = max(1, _PIXELS // (len(subject.labels) * height * width))
    for group in _same_maps(points.points):
        maps, weights = subject.maps[group[0].collecting], group[0].config.cross_weights
        for first in range(0, len(group), most):
            part = group[first : first + most]
            raised = torch.stack([_powers(subject, point, objective) for point in part])
            heatmaps = heatmaps_under(maps, weights, raised, (height, width))
            yield from zip([point.row.name for point in part], heatmaps, strict=True)


def _same_maps(points: Sequence[Point]) -> list[list[Point]]:
    """Points that read the same attention with the same weights."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        key = (point.collecting, repr(point.config.cross_weights))
        groups.setdefault(key, []).append(point)
    return list(groups.values())


def _powers(subject: Subject, point: Point, objective: str) -> Tensor:
    losses = subject.losses.get(point.scoring) if point.scoring else None
    steps = subject.steps.get(point.scoring) if point.scoring else None
    return powers(point, losses, steps, objective, len(subject.labels))


def _all_background(subject: Subject) -> Tally:
    """An image without classes: every pixel that counts is background, and is called so."""
    pixels = torch.tensor([int((subject.sample.truth != IGNORE).sum())])
    counts = pixels[:, None].expand(1, len(THRESHOLDS)).contiguous()
    label = torch.zeros(1, dtype=torch.int64)
    return Tally(torch.full_like(label, subject.index), label, pixels, counts, counts)
