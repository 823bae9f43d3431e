"""From samples to rows of results: every image is measured once for all rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores, exponents, weighted_elbo
from pixalign.alignment.collect import attention_maps, images_at_once
from pixalign.alignment.elbo import EMPTY, TextErrors, text_errors
from pixalign.alignment.heatmaps import activation, combined_layers, finish, heatmaps_under
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts, plan_timesteps
from pixalign.alignment.request import EncodedImage
from pixalign.alignment.sharing import measurement_names
from pixalign.bench.clock import Clock
from pixalign.bench.exponents import evidence_by, exponents_by
from pixalign.bench.found_masks import FoundMasks
from pixalign.bench.metrics import Tally, nearest_threshold, tally
from pixalign.bench.spec import SpecRow
from pixalign.bench.store import ImageRow
from pixalign.bench.subject import Subject, image_seed
from pixalign.config import AlignConfig
from pixalign.core.checks import check_finite
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import AttentionMaps, Evidence
from pixalign.methods import METHODS

_PIXELS = 2**28  # of heatmaps held at once: 1 GiB of float32

# Whose, of which row, [D, N, H, W] for the D rows of its exponents.
Heatmaps = Iterator[tuple[Subject, "Measurement", Tensor]]
T = TypeVar("T")


@dataclass(frozen=True)
class Measurement:
    """A row on a model: its resolved config, and the names of what it reads.

    ``collecting`` is the name of the attention, ``scoring`` that of the losses; "" reads none.
    Methods that are not separable read attention themselves.
    """

    row: SpecRow
    config: AlignConfig
    collecting: str
    scoring: str

    @classmethod
    def of(cls, row: SpecRow, model: AlignmentModel) -> Measurement:
        """A row on a model."""
        config: AlignConfig = model.resolve(row.config)
        if row.scores is not None:  # centred, a score that all classes share does nothing
            config = dataclasses.replace(config, centred=False)
        collecting, scoring = measurement_names(config)
        scored = config.by_position or (config.measured and row.scores is None)
        shared = METHODS[row.method].separable and config.absent == "keep"
        return cls(row, config, collecting if shared else "", scoring if scored else "")

    @property
    def name(self) -> str:
        """The row's."""
        return self.row.name

    @property
    def gamma(self) -> float:
        """That of the config, which is resolved."""
        assert self.config.gamma is not None
        return self.config.gamma

    def elbo(self, errors: TextErrors, objective: str) -> Tensor:
        """float64 [N]: the weighted mean of the losses of the classes' texts."""
        weights = errors.steps.weights(self.config.elbo_weighting, objective)
        return weighted_elbo(errors.losses, weights)

    def scores(self, elbo: Tensor | None, count: int) -> Tensor:
        """The alignment scores S [N] of a row, from its ELBO [N] if it reads one."""
        if elbo is None:
            return torch.full((count,), self.row.scores or 1.0)
        return alignment_scores(elbo, self.gamma)

    def exponents(self, elbo: Tensor | None, count: int, seed: int) -> Tensor:
        """The powers [D, N] of a separable method's maps, by the row's rule."""
        if elbo is None or self.config.calibrate != "elbo":
            return exponents(self.scores(None, count))[None]
        rule, centred = self.row.exponents, bool(self.config.centred)
        return exponents_by(rule, elbo, self.gamma, centred, seed)


class Bench:
    """A model and the rows that are measured on it.

    ``methods`` are the rows'; what one refuses of its options is an error here. ``clock`` has
    each row's seconds.
    """

    def __init__(self, rows: Sequence[SpecRow], model: AlignmentModel) -> None:
        self.methods = {
            row.name: METHODS[row.method].with_options(model, row.options) for row in rows
        }
        self.model, self.backbone = model, model.backbone
        self.rows = [Measurement.of(row, model) for row in rows]
        self.clock = Clock(model.backbone.device)
        self.quiet = Progress(0, "", show=False)
        self.masks: FoundMasks | None = None  # where masks are kept

    def measure(self, subjects: Sequence[Subject]) -> tuple[list[ImageRow], dict[str, float]]:
        """The rows of some images, and the seconds that each row of the table took for them.

        An image without classes is all background, and asks for nothing. A row's seconds are those
        of the encoding, of its own attention, timesteps and heatmaps, whoever else reads them too.
        """
        self.clock.rows.clear()
        for subject in subjects:
            if not subject.labels:
                subject.tallies = {row.name: _all_background(subject) for row in self.rows}
                for row in self.rows:
                    self._keep(subject, row, torch.zeros(0, *subject.size))
        for subject, row, heatmaps in self.heatmaps([x for x in subjects if x.labels]):
            labels = [label + 1 for label in subject.labels]
            drawn = tally(heatmaps, subject.truth, labels, subject.index)
            if row.row.supervised:
                drawn = [_best(drawn, row.config)]
            subject.tallies[row.name] = tuple(drawn)
            self._keep(subject, row, heatmaps[0])
        seconds = {row.name: self.clock.rows[row.name] for row in self.rows}
        return [_image_row(subject, self.rows) for subject in subjects], seconds

    def _keep(self, subject: Subject, row: Measurement, heatmaps: Tensor) -> None:
        """Write the mask at the fixed threshold, if masks are asked for."""
        if self.masks is not None:
            assert row.config.threshold is not None
            self.masks.write(subject, row.name, heatmaps, row.config.threshold)

    def heatmaps(self, subjects: Sequence[Subject]) -> Heatmaps:
        """Each subject's heatmaps under each row, as they are made: attention is read and let go.

        Images go through the network together where their sizes and the memory allow.
        """
        for here in _grouped(self.rows, lambda row: row.config.resize) if subjects else ():
            with self.clock.charged({row.name: 1.0 for row in here}):
                config = here[0].row.config
                pairs = [(x, self.model.encode(x.sample.image, config=config)) for x in subjects]
            for alike in _grouped(pairs, lambda pair: pair[1].latents.shape):
                latents = torch.cat([encoded.latents for _, encoded in alike])
                group = [subject for subject, _ in alike]
                for readers in _grouped(
                    [row for row in here if row.scoring], lambda row: row.scoring
                ):
                    self._score(group, latents, readers)
                for readers in _grouped(here, lambda row: row.collecting):
                    if readers[0].collecting:
                        yield from self._by_attention(group, latents, readers)
                    else:
                        yield from self._by_methods(alike, readers)

    def _score(
        self, group: Sequence[Subject], latents: Tensor, readers: Sequence[Measurement]
    ) -> None:
        """The errors that some rows read, and each row's ELBO and evidence of them."""
        backbone, config = self.backbone, readers[0].config
        with self.clock.charged({row.name: 1.0 for row in readers}):
            plans = [plan_prompts(backbone, subject.phrases, None, config) for subject in group]
            planned = [subject.timesteps(backbone, latents, config)[1] for subject in group]
            noised = [timesteps for timesteps in planned if timesteps is not None]
        asked = {row.name: [self._texts(plan, row) for plan in plans] for row in readers}
        texts = [list(dict.fromkeys(chain(*own))) for own in zip(*asked.values(), strict=True)]
        total = sum(map(len, texts))  # a row is charged for the texts that it asks for
        shares = {name: sum(map(len, own)) / total for name, own in asked.items()}
        with self.clock.charged(shares):
            by_position = any(row.config.by_position for row in readers)
            measured = self._errors(latents, texts, noised, by_position)
        for place, (subject, plan, errors) in enumerate(zip(group, plans, measured, strict=True)):
            classes = errors.of(plan.elbo_texts)
            with subject.naming():
                check_finite(errors.losses, "losses", backbone.dtype)
            subject.errors[readers[0].scoring] = errors
            for row in readers:
                if row.row.scores is None:
                    subject.elbos[row.name] = row.elbo(classes, backbone.objective)
                if row.row.evidence == "own-noise":
                    with self.clock.charged({row.name: 1.0}):
                        alone = self._noised_apart(subject, latents[place : place + 1], plan, row)
                    subject.evidence[row.name] = alone
                elif row.config.by_position:
                    own = evidence_by(row.row.evidence, classes.evidence())
                    subject.evidence[row.name] = own

    def _texts(self, plan: PromptPlan, row: Measurement) -> list[str]:
        """The texts of a row's passes, each once."""
        first = (EMPTY,) if row.config.by_position else ()
        return list(dict.fromkeys((*first, *self.methods[row.name].texts(plan, row.config))))

    def _errors(
        self,
        latents: Tensor,
        texts: Sequence[Sequence[str]],
        noised: Sequence[NoisedTimesteps],
        by_position: bool,
    ) -> list[TextErrors]:
        how = (self.model.batch_size, self.quiet)
        return text_errors(self.backbone, latents, texts, noised, *how, by_position=by_position)

    def _noised_apart(
        self, subject: Subject, latents: Tensor, plan: PromptPlan, row: Measurement
    ) -> Evidence:
        """The evidence of classes that are each measured under noise of their own."""
        parts = []
        for index, text in enumerate(plan.elbo_texts):
            generator = torch.Generator().manual_seed(image_seed(subject.seed, f"class {index}"))
            schedule = self.backbone.schedule
            noised = plan_timesteps(schedule, latents, row.config, generator)[1]
            assert noised is not None
            (errors,) = self._errors(latents, [[text]], [noised], True)
            parts.append(errors.of([text]).evidence())
        return Evidence.concatenate(parts)

    def _by_attention(
        self, group: Sequence[Subject], latents: Tensor, readers: Sequence[Measurement]
    ) -> Heatmaps:
        """What rows that read the same attention make of it, as many images as memory holds."""
        backbone, config, batch_size = self.backbone, readers[0].config, self.model.batch_size
        most = images_at_once(backbone, latents[:1], config.self_attention)
        for first in range(0, len(group), most):
            part, shown = group[first : first + most], latents[first : first + most]
            with self.clock.charged({row.name: 1.0 for row in readers}):
                plans = [plan_prompts(backbone, x.phrases, None, config) for x in part]
                steps = [subject.timesteps(backbone, shown, config)[0] for subject in part]
                collected = attention_maps(
                    backbone, shown, plans, steps, config, batch_size, self.quiet
                )
            for subject, maps in zip(part, collected, strict=True):
                for same in _grouped(readers, _weights_of):
                    yield from self._of_weights(subject, maps, same)
            del collected, maps  # before more is read

    def _of_weights(
        self, subject: Subject, maps: AttentionMaps, same: Sequence[Measurement]
    ) -> Heatmaps:
        """The heatmaps of rows that give the layers of some attention the same weights."""
        evidence = subject.evidence.get(same[0].name)
        combined = combined_layers(maps, same[0].config, evidence)
        with subject.naming():
            check_finite(combined, "attention maps", self.backbone.dtype)
        subject.activations.setdefault(same[0].collecting, activation(combined).cpu())
        count, (height, width) = len(subject.labels), subject.size
        most = max(1, _PIXELS // (count * height * width))
        for first in range(0, len(same), most):
            part = same[first : first + most]
            with self.clock.charged({row.name: 1 / len(part) for row in part}):
                powers = [
                    row.exponents(subject.elbos.get(row.name), count, subject.seed) for row in part
                ]
                heatmaps = heatmaps_under(maps, combined, torch.cat(powers), subject.size)
            each = torch.split(heatmaps, [len(drawn) for drawn in powers])
            for row, drawn in zip(part, each, strict=True):
                if row.config.calibrate == "evidence" or row.config.edges != "none":
                    about = (maps.grid, subject.sample.image, subject.evidence.get(row.name))
                    with self.clock.charged({row.name: 1.0}):
                        drawn = torch.stack([finish(x, *about, row.config) for x in drawn])
                yield subject, row, drawn

    def _by_methods(
        self, group: Sequence[tuple[Subject, EncodedImage]], rows: Sequence[Measurement]
    ) -> Heatmaps:
        """What other methods find, under the scores that the paper's would have."""
        for row in rows:
            method = self.methods[row.name]
            for subject, encoded in group:
                options: dict[str, Any] = {"config": row.config, "seed": subject.seed}
                if row.row.scores is not None:
                    options["scores"] = row.scores(None, len(subject.labels)).numpy()
                if row.scoring:
                    options["errors"] = subject.errors[row.scoring]
                if method.supervised:
                    options["target_masks"] = subject.target_masks
                with self.clock.charged({row.name: 1.0}), subject.naming():
                    result = method.align(encoded, subject.phrases, **options)
                yield subject, row, torch.from_numpy(result.heatmaps)[None]


def _image_row(subject: Subject, rows: Sequence[Measurement]) -> ImageRow:
    """What is kept of an image; ELBO and activation are those of the first row that has any."""
    elbo = [subject.elbos[row.name] for row in rows if row.name in subject.elbos][:1]
    peaks = subject.activations
    shown = [peaks[row.collecting] for row in rows if row.collecting in peaks][:1]
    visible, pixels = subject.sample.visible, np.bincount(subject.sample.truth.ravel())
    return ImageRow(
        index=subject.index,
        key=subject.sample.key,
        labels=subject.labels,
        area=tuple(float(pixels[label + 1] / pixels.sum()) for label in subject.labels),
        group=subject.sample.group,
        target=subject.sample.target,
        visible=None if visible is None else tuple(visible[label] for label in subject.labels),
        elbo=tuple(elbo[0].tolist()) if elbo else None,
        activation=tuple(shown[0].tolist()) if shown else None,
        tallies={row.name: subject.tallies[row.name] for row in rows},
    )


def _grouped(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """Items of one key together, in the order of their first."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _weights_of(row: Measurement) -> str:
    """Rows of the same layers' weights; those by agreement depend on the evidence."""
    config, agreeing = row.config, row.config.cross_weights == "agreement"
    return repr((config.cross_weights, row.name if agreeing else ""))


def _best(drawn: Sequence[Tally], config: AlignConfig) -> Tally:
    """The one that suits the truth best at the config's threshold."""
    assert config.threshold is not None
    at = nearest_threshold(config.threshold)
    return max(drawn, key=lambda one: float(one.at(at).ious().mean()))


def _all_background(subject: Subject) -> tuple[Tally]:
    """An image without classes: every pixel that counts is background, and is called so."""
    (counted,) = tally(torch.zeros(1, 1, *subject.size), subject.truth, [1], subject.index)
    return (counted.select(counted.label == 0),)
