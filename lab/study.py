"""The study: does calibration help where the truth is known, and why?

Every scene is measured once; all variants are computed from that (`run`), and compared with
intervals over images (`pixalign.lab.summary`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pixalign.alignment.aligner import Aligner
from torch import Tensor

from lab.outcome import AUTOMATIC, Outcome
from lab.summary import describe_stress, summarise
from lab.trial import Measured, in_groups
from lab.variants import Plan, elbo_of, every_order, plan, strength
from pixalign.alignment.heatmaps import activation, heatmaps_under, otsu
from pixalign.attention.layers import combine_layers
from pixalign.backbones.load import resolve_device
from pixalign.bench.metrics import THRESHOLDS, Tally, tally, threshold_index
from pixalign.core.checks import check_choice
from pixalign.core.files import make_folder, write_json
from pixalign.core.progress import Progress
from pixalign.core.provenance import device_name, versions
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import LabelledScene
from pixalign.scenes.stress import DIALS, OTHER, TARGET, stress

PARTS = ("main", "gamma", "sweeps", "stress")
STRESS_LEVELS = (0.25, 0.5, 0.75, 1.0)
_CHUNK = 24  # scenes in memory at once
_SAVE_SECONDS = 30  # the whole outcome is written each time


def native_size(aligner: Aligner) -> int:
    """The side of the scenes that the model was trained on."""
    height, width = aligner.backbone.native_size
    if height != width:
        raise ValueError(f"the model's pictures are {height}x{width}; the lab's are square")
    return height


def run(
    aligner: Aligner,
    split: str,
    count: int,
    parts: Sequence[str],
    *,
    keep: Path | None = None,
    show: bool = True,
) -> Outcome:
    """All variants of the parts on ``count`` scenes of 2 to 4 objects of a split.

    Finished scenes are kept in the file ``keep``, from which the next run goes on.
    """
    backbone, size = aligner.backbone, native_size(aligner)
    planned = plan(backbone.family, aligner.own, tuple(parts))
    scenes = draw_scenes(split, count)
    key = json.dumps([split, count, sorted(parts), aligner.name, aligner.own])
    outcome = Outcome.load(keep, key) if keep else Outcome()
    saved = time.monotonic()
    with Progress(len(scenes), f"study {split}", show, "scene") as progress:
        progress.advance(len(outcome.pairs))
        needs = (planned.collecting, planned.scoring, aligner.batch_size)
        groups = in_groups(backbone, scenes, size, *needs, chunk=_CHUNK, start=len(outcome.pairs))
        for group in groups:
            for subject, measured in group:
                _judge(outcome, planned, subject, measured)
                progress.advance(1)
            if keep and time.monotonic() - saved > _SAVE_SECONDS:
                outcome.save(keep, key)
                saved = time.monotonic()
    return outcome


def run_stress(
    aligner: Aligner, scenes: int, *, show: bool = True
) -> dict[tuple[str, float], Outcome]:
    """Uncalibrated and calibrated on ``scenes`` scenes of each dial and level; 0 is the base."""
    backbone, size = aligner.backbone, native_size(aligner)
    planned = plan(backbone.family, aligner.own, ("main",))
    wanted = ("uncalibrated", "default", "default-3")
    few = Plan(
        tuple(v for v in planned.variants if v.name in wanted),
        {"own": planned.collecting["own"]},
        {"20": planned.scoring["20"]},
    )
    settings = [(DIALS[0], 0.0)] + [(dial, level) for dial in DIALS for level in STRESS_LEVELS]
    outcomes = {}
    with Progress(len(settings) * scenes, "study stress", show, "scene") as progress:
        for dial, level in settings:
            outcome = Outcome()
            batch = stress(dial, level, 0, scenes)
            needs = (few.collecting, few.scoring, aligner.batch_size)
            for group in in_groups(backbone, batch, size, *needs, chunk=_CHUNK, only=_both):
                for subject, measured in group:
                    target = int(batch.labels[subject.number, TARGET])
                    assert int(batch.labels[subject.number, OTHER]) in subject.labels
                    _judge(outcome, few, subject, measured, target)
            progress.advance(scenes)
            outcomes[dial, level] = outcome
    return outcomes


def _both(subject: LabelledScene) -> bool:
    """Whether the target is not wholly hidden."""
    return len(subject.labels) == 2


def _judge(
    outcome: Outcome,
    planned: Plan,
    subject: LabelledScene,
    measured: Measured,
    target: int | None = None,
) -> None:
    """Add one scene to the outcome."""
    image, labels = len(outcome.pairs), [label + 1 for label in subject.labels]
    size = (int(subject.truth.shape[0]), int(subject.truth.shape[1]))
    for name, config in planned.collecting.items():
        group = [variant for variant in planned.variants if variant.maps == name]
        if not group:
            continue
        maps = measured.maps[name]
        powers = torch.stack([variant.exponents(subject, measured) for variant in group])
        heatmaps = heatmaps_under(maps, config.cross_weights, powers, size)
        counted = tally(heatmaps, subject.truth, labels, image)
        for variant, rows, heat in zip(group, counted, heatmaps, strict=True):
            outcome.tallies.setdefault(variant.name, []).append(rows)
            if variant.name in AUTOMATIC:
                chosen = otsu(heat.amax(0))
                outcome.automatic.setdefault(variant.name, []).append(_nearest(chosen))
    by_name = {variant.name: variant.exponents for variant in planned.variants}
    for name, source in (("best-order", "default"), ("best-order-3", "default-3")):
        if source in by_name:
            orders = every_order(by_name[source](subject, measured))
            best = _best_order(planned, subject, measured, orders, labels, image)
            outcome.tallies.setdefault(name, []).append(best)
    outcome.pairs.append(_known(planned, subject, measured, target))


def _best_order(
    planned: Plan,
    subject: LabelledScene,
    measured: Measured,
    orders: Tensor,
    labels: list[int],
    image: int,
) -> Tally:
    """With the truth known: of the orders [O, N] of the exponents, the one that suits best."""
    config = planned.collecting["own"]
    size = (int(subject.truth.shape[0]), int(subject.truth.shape[1]))
    heatmaps = heatmaps_under(measured.maps["own"], config.cross_weights, orders, size)
    assert config.threshold is not None
    at = _nearest(config.threshold)
    return max(
        tally(heatmaps, subject.truth, labels, image),
        key=lambda rows: float(rows.ious()[:, at].mean()),
    )


def _nearest(threshold: float) -> int:
    """The index of the nearest of THRESHOLDS."""
    return threshold_index(min(max(round(threshold, 2), THRESHOLDS[0]), THRESHOLDS[-1]))


def _known(
    planned: Plan, subject: LabelledScene, measured: Measured, target: int | None
) -> dict[str, Any]:
    config = planned.collecting["own"]
    maps = measured.maps["own"]
    assert config.cross_weights is not None
    combined = combine_layers(maps.cross, maps.layers, config.cross_weights)
    bounds = elbo_of(measured)
    return {
        "labels": list(subject.labels),
        "area": list(subject.area),
        "visible": list(subject.visible),
        "elbo": bounds.tolist(),
        "norm": strength(bounds).tolist(),
        "activation": activation(combined).tolist(),
        "target": target,
    }


def study(
    aligner: Aligner,
    split: str,
    count: int,
    *,
    parts: Sequence[str] = PARTS,
    stress_scenes: int = 60,
    reference: Mapping[str, Any] | None = None,
    draws: int = 1000,
    keep: Path | None = None,
    show: bool = True,
) -> dict[str, Any]:
    """Run the parts and compare. ``reference`` is an earlier study (of val): each variant's fixed
    threshold is the best one there; without it, the model's own."""
    for part in parts:
        check_choice("a part", part, PARTS)
    result: dict[str, Any] = {
        "split": split,
        "parts": list(parts),
        "model": aligner.name,
        "own": aligner.own,
        "device": device_name(aligner.backbone.device),
        "versions": versions(),
    }
    scored = [part for part in parts if part != "stress"]
    if scored:
        outcome = run(aligner, split, count, scored, keep=keep, show=show)
        result |= summarise(outcome, aligner.own, reference, draws)
    if "stress" in parts:
        result["stress"] = describe_stress(run_stress(aligner, stress_scenes, show=show), draws)
    return result


def study_of(
    model: str | Path | None,
    split: str,
    count: int,
    *,
    device: str = "auto",
    reference: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """`study` of a folder or a model of the lab (None: the embedded one), in float32."""
    known = json.loads(reference.read_text(encoding="utf-8")) if reference else None
    place = resolve_device(device)
    aligner = Aligner.from_pretrained(
        model,
        device=str(place),
        dtype="float32",
        batch_size=1024 if place.type == "cuda" else "auto",
    )
    return study(aligner, split, count, reference=known, **options)


def kept_study(model: str | Path | None, split: str, count: int, out: Path, **options: Any) -> Any:
    """`study_of`, written to ``out``; a stopped run is kept beside it and goes on."""
    keep = make_folder(out.parent) / f"{out.name}.partial"
    result = study_of(model, split, count, keep=keep, **options)
    write_json(out, result)
    keep.unlink(missing_ok=True)
    return result
