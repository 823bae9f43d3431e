"""A model's own settings, chosen on val: layers, collecting range, strength and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.measured import scene_attention, scene_errors, scene_groups
from pixalign.alignment.calibrate import alignment_scores, exponents
from pixalign.alignment.elbo import TextErrors
from pixalign.alignment.heatmaps import heatmaps_under
from pixalign.attention.layers import combine_layers
from pixalign.backbones.locations import SETTINGS_FILE, located
from pixalign.bench import fitting
from pixalign.bench.metrics import tally
from pixalign.bench.subject import Subject
from pixalign.config import AlignConfig
from pixalign.core.files import write_json
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import AttentionMaps
from pixalign.methods import METHODS
from pixalign.model import Model, load

RANGES = ((0.0, 0.1), (0.0, 0.2), (0.1, 0.3), (0.2, 0.4), (0.4, 0.6))
START = "0-0.2"  # the range in which the layers' weights are chosen
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_ROUNDS = 2

Weights = dict[str, float]  # of the layers, by name


@dataclass(frozen=True, eq=False)
class Scene:
    """A val scene, its attention by range, and the errors under its classes' texts."""

    subject: Subject
    maps: Mapping[str, AttentionMaps]
    errors: TextErrors

    @property
    def elbo(self) -> Tensor:
        """float64 [N]."""
        return self.errors.losses.double().mean(1)


def tune(model: AlignmentModel, count: int, *, show: bool = True) -> dict[str, Any]:
    """Settings for a model folder's pixalign.json, and how they were found.

    First the layers' weights, one after the other, in the range (0, 0.2), by the uncalibrated
    mIoU at its best threshold; then the range; then gamma, centred or not, by the calibrated
    mIoU; then each method's threshold and temperature. All on ``count`` val scenes. "alone" says
    how far each layer gets by itself in the chosen range.
    """
    ranges = {f"{low:g}-{high:g}": (low, high) for low, high in RANGES}
    scenes = _measure(model, count, ranges, show)
    layers = scenes[0].maps[START].layers.names
    total = (
        _ROUNDS * len(layers) * (len(WEIGHTS) - 1)
        + len(ranges)
        + 2 * len(fitting.STRENGTHS)
        + len(layers)
    )
    with Progress(total, "tune", show, "try") as progress:
        weights, tried = _layer_weights(scenes, layers, progress)
        by_range = {name: best_threshold(scenes, weights, name) for name in ranges}
        chosen = max(by_range, key=lambda name: by_range[name][0])
        progress.advance(len(ranges))
        powers = {
            (strength, centred): best_threshold(scenes, weights, chosen, 1 / strength, centred)
            for centred in (False, True)
            for strength in fitting.STRENGTHS
        }
        progress.advance(len(powers))
        alone = {layer: best_threshold(scenes, {layer: 1.0}, chosen)[0] for layer in layers}
        progress.advance(len(alone))
    strength, centred = max(powers, key=lambda power: powers[power][0])
    settings = {
        "gamma": 1 / strength,
        "centred": centred,
        "cross_weights": {layer: weight for layer, weight in weights.items() if weight},
        "collect_range": list(ranges[chosen]),
        **{key: model.settings[key] for key in ("absent_below",) if key in model.settings},
    }
    fitted = fit_methods(model, settings, scenes, show=show)
    return {
        "settings": settings | fitting.by_method(fitted),
        "scenes": len(scenes),
        "uncalibrated": by_range[chosen][0],
        "calibrated": powers[strength, centred][0],
        "methods": fitted,
        "ranges": {name: miou for name, (miou, _) in by_range.items()},
        "alone": alone,
        "gammas": {f"{g:g}": powers[g, False][0] for g in fitting.STRENGTHS},
        "centred": {f"{g:g}": powers[g, True][0] for g in fitting.STRENGTHS},
        "tried": tried,
    }


def fit_methods(
    model: AlignmentModel, settings: Mapping[str, Any], scenes: list[Scene], *, show: bool = True
) -> dict[str, dict[str, float]]:
    """Each method's best threshold, and the temperature at which its probabilities fit best.

    Under the settings that were chosen, through the front door; the scenes' errors are known.
    """
    fitted = {}
    own = replace_settings(model, settings)
    with Progress(len(fitting.FITTED) * len(scenes), "methods", show, "scene") as progress:
        for name in fitting.FITTED:
            method, config = METHODS[name](own), AlignConfig(method=name)
            heatmaps = []
            for scene in scenes:
                subject, known = scene.subject, scene.errors
                result = method.align(
                    subject.sample.image, subject.phrases, config=config, seed=subject.seed,
                    errors=known if own.resolve(config).measured else None,
                )  # fmt: skip
                heatmaps.append(torch.from_numpy(result.heatmaps))
                progress.advance(1)
            subjects = [scene.subject for scene in scenes]
            miou, threshold = oracle(heatmaps, subjects)
            temperature = fitting.best_temperature(heatmaps, [x.truth for x in subjects], threshold)
            fitted[name] = {"miou": miou, "threshold": threshold, "temperature": temperature}
    return fitted


def replace_settings(model: AlignmentModel, settings: Mapping[str, Any]) -> Model:
    """The same loaded model with other settings of its own."""
    return Model(model.backbone, model.name, settings, model.batch_size, False)


def tune_model(
    name: str | Path | None, count: int, device: str, *, keep: bool = False, show: bool = True
) -> dict[str, Any]:
    """`tune` for a model folder (None: the embedded one), in float32; writes its settings.

    ``keep`` fits thresholds and temperatures under the layers, range and gamma that it has.
    """
    model = load(name, device=device, dtype="float32")
    if keep:
        scenes = _measure(model, count, {}, show)
        fitted = fit_methods(model, model.settings, scenes, show=show)
        settings = dict(model.settings) | fitting.by_method(fitted)
        record: dict[str, Any] = {"settings": settings, "scenes": len(scenes), "methods": fitted}
    else:
        record = tune(model, count, show=show)
    write_json(Path(located(name)) / SETTINGS_FILE, record["settings"])
    return record


def _measure(
    model: AlignmentModel, count: int, ranges: Mapping[str, tuple[float, float]], show: bool
) -> list[Scene]:
    """Val scenes under the package's defaults, whatever the model's settings are so far."""
    family = model.backbone.family
    collecting = {
        name: AlignConfig(collect_range=bounds).resolved(family) for name, bounds in ranges.items()
    }
    scoring = AlignConfig().resolved(family)
    scenes = []
    for group, latents in scene_groups(model, "val", count, show=show):
        maps = {n: scene_attention(model, group, latents, c) for n, c in collecting.items()}
        errors = scene_errors(model, group, latents, scoring)
        for place, subject in enumerate(group):
            own = {name: each[place] for name, each in maps.items()}
            scenes.append(Scene(subject, own, errors[place]))
    return scenes


def _layer_weights(
    scenes: list[Scene], layers: tuple[str, ...], progress: Progress
) -> tuple[Weights, list[dict[str, Any]]]:
    """The weights that a search along each layer in turn reaches, and its way there."""
    weights = dict.fromkeys(layers, 1.0)
    reached = best_threshold(scenes, weights, START)[0]
    tried: list[dict[str, Any]] = [{"layers": dict(weights), "miou": reached}]
    for _ in range(_ROUNDS):
        for layer in layers:
            options = {weights[layer]: reached}
            for value in WEIGHTS:
                changed = weights | {layer: value}
                if value not in options and any(changed.values()):
                    options[value] = best_threshold(scenes, changed, START)[0]
                    progress.advance(1)
            weights[layer], reached = max(options.items(), key=lambda item: item[1])
            tried.append({"layers": dict(weights), "miou": reached})
    return weights, tried


def best_threshold(
    scenes: list[Scene], weights: Weights, name: str, gamma: float = 1.0, centred: bool = False
) -> tuple[float, float]:
    """The mIoU in percent at the best threshold, and that threshold, for attention of a range."""
    heatmaps: list[Tensor] = []
    for scene in scenes:
        scores = alignment_scores(scene.elbo, gamma)
        powers, maps = exponents(scores, centred)[None], scene.maps[name]
        combined = combine_layers(maps.cross, maps.layers, weights)
        heatmaps += heatmaps_under(maps, combined, powers, scene.subject.size)
    return oracle(heatmaps, [scene.subject for scene in scenes])


def oracle(heatmaps: Sequence[Tensor], subjects: Sequence[Subject]) -> tuple[float, float]:
    """The mIoU in percent of heatmaps [N, H, W] at their best threshold, and that threshold."""
    tallies = []
    for maps, subject in zip(heatmaps, subjects, strict=True):
        labels = [label + 1 for label in subject.labels]
        tallies += tally(maps[None], subject.truth, labels, subject.index)
    return fitting.best_threshold(tallies)
