"""A model's own settings, chosen on val: layers, collecting range, strength and thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.measured import scene_attention, scene_groups, scene_losses
from pixalign.alignment.calibrate import alignment_scores, exponents
from pixalign.alignment.heatmaps import activation, heatmaps_under
from pixalign.attention.layers import combine_layers
from pixalign.backbones.locations import SETTINGS_FILE, located
from pixalign.bench.measuring import Subject
from pixalign.bench.metrics import THRESHOLDS, Tally, curve, tally
from pixalign.config import AlignConfig
from pixalign.core.files import write_json
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import AttentionMaps
from pixalign.model import load

RANGES = ((0.0, 0.1), (0.0, 0.2), (0.1, 0.3), (0.2, 0.4), (0.4, 0.6))
START = "0-0.2"  # the range in which the layers' weights are chosen
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
GAMMAS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)  # 1 / gamma
_ROUNDS = 2

Weights = dict[str, float]  # of the layers, by name


@dataclass(frozen=True, eq=False)
class Scene:
    """A val scene, its attention by range, and the ELBO float64 [N] of its classes."""

    subject: Subject
    maps: Mapping[str, AttentionMaps]
    elbo: Tensor


def tune(model: AlignmentModel, count: int, *, show: bool = True) -> dict[str, Any]:
    """Settings for a model folder's pixalign.json, and how they were found.

    First the layers' weights, one after the other, in the range (0, 0.2), by the uncalibrated
    mIoU at its best threshold; then the range; then gamma, centred or not, by the calibrated
    mIoU; then both thresholds; then the bound below which a map is called blind. All on
    ``count`` val scenes. "alone" says how far each layer gets by itself in the chosen range.
    """
    ranges = {f"{low:g}-{high:g}": (low, high) for low, high in RANGES}
    scenes = _measure(model, count, ranges, show)
    layers = scenes[0].maps[START].layers.names
    total = _ROUNDS * len(layers) * (len(WEIGHTS) - 1) + len(ranges) + 2 * len(GAMMAS) + len(layers)
    with Progress(total, "tune", show, "try") as progress:
        weights, tried = _layer_weights(scenes, layers, progress)
        by_range = {name: best_threshold(scenes, weights, name) for name in ranges}
        chosen = max(by_range, key=lambda name: by_range[name][0])
        progress.advance(len(ranges))
        powers = {
            (strength, centred): best_threshold(scenes, weights, chosen, 1 / strength, centred)
            for centred in (False, True)
            for strength in GAMMAS
        }
        progress.advance(len(powers))
        alone = {layer: best_threshold(scenes, {layer: 1.0}, chosen)[0] for layer in layers}
        progress.advance(len(alone))
    strength, centred = max(powers, key=lambda power: powers[power][0])
    plain, calibrated = by_range[chosen], powers[strength, centred]
    settings = {
        "gamma": 1 / strength,
        "centred": centred,
        "cross_weights": {layer: weight for layer, weight in weights.items() if weight},
        "collect_range": list(ranges[chosen]),
        "threshold": calibrated[1],
        "uncalibrated_threshold": plain[1],
        "min_peak_ratio": _lowest_peak_ratio(scenes, weights, chosen),
    }
    return {
        "settings": settings,
        "scenes": len(scenes),
        "uncalibrated": plain[0],
        "calibrated": calibrated[0],
        "ranges": {name: miou for name, (miou, _) in by_range.items()},
        "alone": alone,
        "gammas": {f"{g:g}": powers[g, False][0] for g in GAMMAS},
        "centred": {f"{g:g}": powers[g, True][0] for g in GAMMAS},
        "tried": tried,
    }


def tune_model(
    name: str | Path | None, count: int, device: str, *, show: bool = True
) -> dict[str, Any]:
    """`tune` for a model folder (None: the embedded one), in float32; writes its settings."""
    record = tune(load(name, device=device, dtype="float32"), count, show=show)
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
        losses = scene_losses(model, group, latents, scoring)
        for place, subject in enumerate(group):
            own = {name: each[place] for name, each in maps.items()}
            scenes.append(Scene(subject, own, losses[place].double().mean(1)))
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


def _lowest_peak_ratio(scenes: list[Scene], weights: Weights, name: str) -> float:
    """The peak over mean that all but 0.5 % of the classes that are in the pictures exceed."""
    maps = [scene.maps[name] for scene in scenes]
    ratios = [activation(combine_layers(one.cross, one.layers, weights)).cpu() for one in maps]
    return round(float(torch.cat(ratios).double().quantile(0.005)), 1)


def best_threshold(
    scenes: list[Scene], weights: Weights, name: str, gamma: float = 1.0, centred: bool = False
) -> tuple[float, float]:
    """The mIoU in percent at the best threshold, and that threshold, for attention of a range."""
    tallies = []
    for scene in scenes:
        subject, scores = scene.subject, alignment_scores(scene.elbo, gamma)
        powers = exponents(scores, centred)[None]
        heatmaps = heatmaps_under(scene.maps[name], weights, powers, subject.size)
        labels = [label + 1 for label in subject.labels]
        tallies += tally(heatmaps, subject.truth, labels, subject.index)
    values = curve(Tally.concatenate(tallies)).miou[0]
    index = int(torch.argmax(values))
    return round(100 * float(values[index]), 3), THRESHOLDS[index]
