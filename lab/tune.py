"""A model's own settings, chosen on val: layers, collecting range, strength and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lab.study import native_size
from lab.trial import Measured, in_groups
from lab.variants import by_elbo
from pixalign.alignment.aligner import Aligner
from pixalign.alignment.heatmaps import activation, heatmaps_under
from pixalign.attention.layers import combine_layers
from pixalign.backbones.locations import located
from pixalign.backbones.model_settings import SETTINGS_FILE
from pixalign.bench.metrics import THRESHOLDS, Tally, curve, tally
from pixalign.config import AlignConfig
from pixalign.core.files import write_json
from pixalign.core.progress import Progress
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import LabelledScene

RANGES = ((0.0, 0.1), (0.0, 0.2), (0.1, 0.3), (0.2, 0.4), (0.4, 0.6))
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
GAMMAS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)  # 1 / gamma
_ROUNDS = 2
_CHUNK = 48

Scene = tuple[LabelledScene, Measured]


def choose(aligner: Aligner, count: int, *, show: bool = True) -> dict[str, Any]:
    """Settings for a model folder's pixalign.json, and how they were found.

    First the layers' weights, one after the other, in the range (0, 0.2), by the uncalibrated
    mIoU at its best threshold; then the range; then gamma, centred or not, by the calibrated
    mIoU; then both thresholds; then the bound below which a map is called blind. All on
    ``count`` val scenes. "alone" says how far each layer gets by itself in that range.
    """
    names = {f"{low:g}-{high:g}": (low, high) for low, high in RANGES}
    start = "0-0.2"
    scenes = _measure(aligner, count, names, show)
    layers = scenes[0][1].maps[start].layers
    weights = dict.fromkeys(layers.names, 1.0)
    reached = _best(scenes, weights, start)[0]
    tried: list[dict[str, Any]] = [{"layers": dict(weights), "miou": reached}]
    total = _ROUNDS * len(layers) * (len(WEIGHTS) - 1) + len(names) + 2 * len(GAMMAS)
    total += len(layers)
    with Progress(total, "choose", show, "try") as progress:
        for _ in range(_ROUNDS):
            for layer in layers.names:
                options = {weights[layer]: reached}
                for value in WEIGHTS:
                    changed = weights | {layer: value}
                    if value not in options and any(changed.values()):
                        options[value] = _best(scenes, changed, start)[0]
                        progress.advance(1)
                weights[layer], reached = max(options.items(), key=lambda item: item[1])
                tried.append({"layers": dict(weights), "miou": reached})
        ranges = {name: _best(scenes, weights, name)[0] for name in names}
        progress.advance(len(names))
        name = max(ranges, key=lambda n: ranges[n])
        powers = {
            (strength, centred): _best(scenes, weights, name, 1 / strength, centred)
            for centred in (False, True)
            for strength in GAMMAS
        }
        progress.advance(len(powers))
        alone = {layer: _best(scenes, {layer: 1.0}, name)[0] for layer in layers.names}
        progress.advance(len(alone))
    strength, centred = max(powers, key=lambda power: powers[power][0])
    plain = _best(scenes, weights, name)
    settings = {
        "gamma": 1 / strength,
        "centred": centred,
        "cross_weights": {layer: weight for layer, weight in weights.items() if weight},
        "collect_range": list(names[name]),
        "threshold": powers[strength, centred][1],
        "uncalibrated_threshold": plain[1],
        "min_peak_ratio": _faintest(scenes, weights, name),
    }
    return {
        "settings": settings,
        "scenes": len(scenes),
        "uncalibrated": plain[0],
        "calibrated": powers[strength, centred][0],
        "ranges": ranges,
        "alone": alone,
        "gammas": {f"{g:g}": powers[g, False][0] for g in GAMMAS},
        "centred": {f"{g:g}": powers[g, True][0] for g in GAMMAS},
        "tried": tried,
    }


def choose_for(model: Path | None, count: int, device: str, *, show: bool = True) -> dict[str, Any]:
    """`choose` for a model folder (None: the embedded one), in float32; writes its settings."""
    aligner = Aligner.from_pretrained(model, device=device, dtype="float32", batch_size="auto")
    found = choose(aligner, count, show=show)
    write_settings(found["settings"], Path(located(model)))
    return found


def write_settings(settings: dict[str, Any], folder: Path) -> Path:
    """Write a model folder's pixalign.json."""
    return write_json(folder / SETTINGS_FILE, settings)


def _measure(
    aligner: Aligner, count: int, names: dict[str, tuple[float, float]], show: bool
) -> list[Scene]:
    backbone, size = aligner.backbone, native_size(aligner)
    collecting = {
        name: AlignConfig(collect_range=bounds).resolved(backbone.family)
        for name, bounds in names.items()
    }
    scoring = {"20": AlignConfig().resolved(backbone.family)}
    batch = draw_scenes("val", count)
    found: list[Scene] = []
    with Progress(len(batch), "measure", show, "scene") as progress:
        needs = (collecting, scoring, aligner.batch_size)
        for group in in_groups(backbone, batch, size, *needs, chunk=_CHUNK):
            found += group
            progress.advance(len(group))
    return found


def _faintest(scenes: list[Scene], weights: dict[str, float], name: str) -> float:
    """The activation that all but 0.5 % of the classes that are in the pictures exceed."""
    found = []
    for _, measured in scenes:
        maps = measured.maps[name]
        found.append(activation(combine_layers(maps.cross, maps.layers, weights)).cpu())
    return round(float(torch.cat(found).double().quantile(0.005)), 1)


def _best(
    scenes: list[Scene],
    weights: dict[str, float],
    name: str,
    gamma: float = 1.0,
    centred: bool = False,
) -> tuple[float, float]:
    """The mIoU in percent at the best threshold, and that threshold."""
    config = AlignConfig(cross_weights=weights)
    powers = by_elbo(gamma, centred=centred)
    found = []
    for image, (subject, measured) in enumerate(scenes):
        size = (int(subject.truth.shape[0]), int(subject.truth.shape[1]))
        exponents = powers(subject, measured)[None]
        heatmaps = heatmaps_under(measured.maps[name], config.cross_weights, exponents, size)
        labels = [label + 1 for label in subject.labels]
        found += tally(heatmaps, subject.truth, labels, image)
    values = curve(Tally.concatenate(found)).miou[0]
    index = int(torch.argmax(values))
    return round(100 * float(values[index]), 3), THRESHOLDS[index]
