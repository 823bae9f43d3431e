"""From samples to rows of results: every image is measured once for all rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from pixalign.backbones import Backbone
from pixalign.bench.clock import Clock
from pixalign.bench.datasets import Sample
from pixalign.bench.measurements import Measurement, measurements, of_one_length, union
from pixalign.bench.metrics import IGNORE, THRESHOLDS, Tally, nearest_threshold, tally
from pixalign.bench.spec import SpecRow
from pixalign.bench.store import ImageRow
from pixalign.config import AlignConfig
from pixalign.core.checks import check_finite
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import AttentionMaps, Phrase
from pixalign.diffusion.schedule import Steps
from pixalign.methods import METHODS

# Pixels of heatmaps held at once: 1 GiB of float32.
_PIXELS = 2**28

# Whose, of which row, [D, N, H, W] for the D rows of its exponents.
Heatmaps = Iterator[tuple["Subject", Measurement, Tensor]]
Timesteps = tuple[NoisedTimesteps, NoisedTimesteps | None]  # of collecting, and of the ELBO


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

    @contextmanager
    def naming(self) -> Iterator[None]:
        """What turns out to be no number is told with the image's key."""
        try:
            yield
        except FloatingPointError as error:
            raise FloatingPointError(f"image {self.sample.key!r}: {error}") from error

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

    def timesteps(self, backbone: Backbone, latents: Tensor, config: AlignConfig) -> Timesteps:
        """Timesteps and noise of collecting and of the ELBO, of which the seed decides."""
        generator = torch.Generator().manual_seed(self.seed)
        return plan_timesteps(backbone.schedule, latents[:1], config, generator)

    def elbo(self, measurement: Measurement, objective: str) -> Tensor | None:
        """float64 [N]: the ELBO that a row reads; None where it reads none."""
        name = measurement.scoring
        if name is None or name not in self.losses:
            return None
        return measurement.elbo(self.losses[name], self.steps[name], objective)


class Bench:
    """A model and the rows that are measured on it.

    ``methods`` are those of rows that are not separable; what one refuses of its options is an
    error here. ``clock`` has each row's seconds.
    """

    def __init__(self, rows: Sequence[SpecRow], model: AlignmentModel) -> None:
        built = {row.name: METHODS[row.method](model, **row.options) for row in rows}
        self.methods = {name: method for name, method in built.items() if not method.separable}
        self.model, self.backbone = model, model.backbone
        self.rows = measurements(rows, model)
        self.clock = Clock(model.backbone.device)

    @property
    def attention(self) -> list[str]:
        """The names of all attention that rows read, each once."""
        return list(dict.fromkeys(row.collecting for row in self.rows if row.collecting))

    def measure(self, subjects: Sequence[Subject]) -> tuple[list[ImageRow], dict[str, float]]:
        """The rows of some images, and the seconds that each row of the table took for them.

        An image without classes is all background, and asks for nothing. A row's seconds are those
        of the encoding, of its own attention, timesteps and heatmaps, whoever else reads them too.
        """
        self.clock.rows.clear()
        tallies: dict[int, dict[str, tuple[Tally, ...]]] = {
            subject.index: {row.name: (_all_background(subject),) for row in self.rows}
            for subject in subjects
        }
        for subject, row, heatmaps in self.heatmaps([x for x in subjects if x.labels]):
            labels = [label + 1 for label in subject.labels]
            drawn = tally(heatmaps, subject.truth, labels, subject.index)
            if len(drawn) > 1 and row.row.supervised:
                drawn = [_best(drawn, row.config)]
            tallies[subject.index][row.name] = tuple(drawn)
        measured = [self._image_row(subject, tallies[subject.index]) for subject in subjects]
        return measured, {row.name: self.clock.rows[row.name] for row in self.rows}

    def _image_row(self, subject: Subject, tallies: Mapping[str, tuple[Tally, ...]]) -> ImageRow:
        elbos = [subject.elbo(row, self.backbone.objective) for row in self.rows]
        elbo = next((elbo for elbo in elbos if elbo is not None), None)
        maps = {name: subject.maps[name] for name in self.attention if name in subject.maps}
        shown = next(iter(maps.values()), None)
        visible = subject.sample.visible
        scoring = dict.fromkeys(row.scoring for row in self.rows)
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
            losses={name: subject.losses[name] for name in scoring if name in subject.losses},
            maps=maps,
            tallies=tallies,
        )

    def heatmaps(self, subjects: Sequence[Subject]) -> Heatmaps:
        """Each subject's heatmaps under each row, as they are made: attention is read and let go.

        Images go through the network together where their sizes and the memory allow.
        """
        for resize in sorted({row.config.resize for row in self.rows}) if subjects else ():
            here = [row for row in self.rows if row.config.resize == resize]
            with self.clock.charged({row.name: 1.0 for row in here}):
                for subject in subjects:
                    encoded = self.model.encode(subject.sample.image, config=here[0].row.config)
                    subject.encoded[resize] = encoded
            for group, latents in _alike(subjects, resize):
                self._score(group, latents, here)
                for name in dict.fromkeys(row.collecting for row in here):
                    readers = [row for row in here if row.collecting == name]
                    if name is None:
                        yield from self._by_methods(group, readers)
                    else:
                        yield from self._by_attention(group, latents, readers)

    def _score(
        self, group: Sequence[Subject], latents: Tensor, here: Sequence[Measurement]
    ) -> None:
        """Losses at the union of all timesteps; a row is charged the part that it reads."""
        by_text: dict[tuple[str, str], dict[str, AlignConfig]] = {}
        for row in here:
            if row.scoring is not None:
                same_text = by_text.setdefault((row.config.template, row.config.elbo_text), {})
                same_text.setdefault(row.scoring, row.config)
        for configs in by_text.values():
            config = next(iter(configs.values()))
            plans = [plan_prompts(self.backbone, x.phrases, None, config) for x in group]
            joint = []
            for subject in group:
                planned = {
                    n: subject.timesteps(self.backbone, latents, c)[1] for n, c in configs.items()
                }
                scoring = {name: noised for name, noised in planned.items() if noised}
                joint.append(union(scoring))
                subject.steps.update({name: noised.steps for name, noised in scoring.items()})
            even = of_one_length([together for together, _ in joint])
            most = len(even[0].steps) * len(group)
            parts = {name: sum(len(own[name]) for _, own in joint) / most for name in configs}
            with self.clock.charged({x.name: parts[x.scoring] for x in here if x.scoring in parts}):
                measured = class_losses(
                    self.backbone, latents, plans, even, self.model.batch_size, _quiet()
                )
            for subject, (_, indices), losses in zip(group, joint, measured, strict=True):
                with subject.naming():
                    check_finite(losses, "losses", self.backbone.dtype)
                subject.losses.update({name: losses[:, own] for name, own in indices.items()})

    def _by_attention(
        self, group: Sequence[Subject], latents: Tensor, readers: Sequence[Measurement]
    ) -> Heatmaps:
        """What rows that read the same attention make of it, as many images as memory holds."""
        by_weights: dict[str, list[Measurement]] = {}
        for row in readers:
            by_weights.setdefault(repr(row.config.cross_weights), []).append(row)
        most = images_at_once(self.backbone, latents[:1], readers[0].config.self_attention)
        for first in range(0, len(group), most):
            part, shown = group[first : first + most], latents[first : first + most]
            collected = self._collect(part, shown, readers)
            for subject, maps in zip(part, collected, strict=True):
                for same in by_weights.values():
                    yield from self._of_weights(subject, maps, same)
            del collected, maps  # before more is read

    def _collect(
        self, group: Sequence[Subject], latents: Tensor, readers: Sequence[Measurement]
    ) -> list[AttentionMaps]:
        """The attention of images that are collected together."""
        backbone, config = self.backbone, readers[0].config
        with self.clock.charged({row.name: 1.0 for row in readers}):
            plans = [plan_prompts(backbone, subject.phrases, None, config) for subject in group]
            steps = [subject.timesteps(backbone, latents, config)[0] for subject in group]
            batch_size = self.model.batch_size
            return attention_maps(backbone, latents, plans, steps, config, batch_size, _quiet())

    def _of_weights(
        self, subject: Subject, maps: AttentionMaps, same: Sequence[Measurement]
    ) -> Heatmaps:
        """The heatmaps of rows that give the layers of some attention the same weights."""
        weights, name = same[0].config.cross_weights, same[0].collecting
        assert weights is not None
        assert name is not None
        combined = combine_layers(maps.cross, maps.layers, weights)
        with subject.naming():
            check_finite(combined, "attention maps", self.backbone.dtype)
        subject.maps.setdefault(name, combined.cpu())
        count, (height, width) = len(subject.labels), subject.size
        most = max(1, _PIXELS // (count * height * width))
        for first in range(0, len(same), most):
            part = same[first : first + most]
            with self.clock.charged({row.name: 1 / len(part) for row in part}):
                powers = [
                    row.exponents(subject.elbo(row, self.backbone.objective), count, subject.seed)
                    for row in part
                ]
                heatmaps = heatmaps_under(maps, weights, torch.cat(powers), subject.size)
            each = torch.split(heatmaps, [len(drawn) for drawn in powers])
            yield from ((subject, *pair) for pair in zip(part, each, strict=True))

    def _by_methods(self, group: Sequence[Subject], rows: Iterable[Measurement]) -> Heatmaps:
        """What other methods find, under the scores that the paper's would have."""
        for row in rows:
            method, config = self.methods[row.name], row.config
            for subject in group:
                options: dict[str, Any] = {"config": config, "seed": subject.seed}
                if config.calibrated:
                    elbo = subject.elbo(row, self.backbone.objective)
                    options["scores"] = row.scores(elbo, len(subject.labels)).numpy()
                if method.supervised:
                    options["target_masks"] = subject.target_masks
                encoded = subject.encoded[config.resize]
                with self.clock.charged({row.name: 1.0}), subject.naming():
                    result = method.align(encoded, subject.phrases, **options)
                yield subject, row, torch.from_numpy(result.heatmaps)[None]


def _quiet() -> Progress:
    return Progress(0, "", show=False)


def _best(drawn: Sequence[Tally], config: AlignConfig) -> Tally:
    """The one that suits the truth best at the config's threshold."""
    assert config.threshold is not None
    at = nearest_threshold(config.threshold)
    return max(drawn, key=lambda one: float(one.at(at).ious().mean()))


def _alike(subjects: Sequence[Subject], resize: str) -> Iterator[tuple[list[Subject], Tensor]]:
    """Subjects whose latents have one shape, and the latents [B, C, h, w]."""

    def shape(subject: Subject) -> tuple[int, ...]:
        return tuple(subject.encoded[resize].latents.shape)

    for _, same in groupby(sorted(subjects, key=shape), key=shape):
        members = list(same)
        yield members, torch.cat([member.encoded[resize].latents for member in members])


def _all_background(subject: Subject) -> Tally:
    """An image without classes: every pixel that counts is background, and is called so."""
    pixels = torch.tensor([int((subject.sample.truth != IGNORE).sum())])
    counts = pixels[:, None].expand(1, len(THRESHOLDS)).contiguous()
    label = torch.zeros(1, dtype=torch.int64)
    return Tally(torch.full_like(label, subject.index), label, pixels, counts, counts)
