"""A study's figures: mIoU with intervals, paired differences, groups of pairs, correlations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.correlation import correlations
from lab.evaluate import frequency_thirds
from lab.outcome import AUTOMATIC, Outcome
from lab.variants import CONSTANTS, RANDOM_DRAWS
from pixalign.bench.metrics import (
    THRESHOLDS,
    Figures,
    Tally,
    bootstrap_weights,
    curve,
    figures,
    interval,
    threshold_index,
)
from pixalign.config import AlignConfig
from pixalign.scenes.atlas import training_shares

VISIBLE = (0.5, 0.75, 0.95)  # edges of the groups by visible share
GROUPED = ("uncalibrated", "default", "default-3")


def summarise(
    outcome: Outcome, own: Mapping[str, Any], reference: Mapping[str, Any] | None, draws: int
) -> dict[str, Any]:
    """Everything a document needs, as JSON-able values in percent."""
    images = len(outcome.pairs)
    weights = bootstrap_weights(images, draws)
    thresholds = _fixed_thresholds(outcome, own, reference)
    variants, drawn = _variants(outcome, weights, thresholds)
    result: dict[str, Any] = {
        "images": images,
        "pairs": sum(len(pair["labels"]) for pair in outcome.pairs),
        "draws": draws,
        "variants": variants,
    }
    if "uncalibrated" in variants:
        result["best_constant"] = _best_constant(variants)
        for base in ("uncalibrated", result["best_constant"]):
            _differences(variants, drawn, base)
        result["by_classes"] = _by_classes(outcome, weights)
        result["groups"] = _groups(outcome, weights, thresholds)
        result["correlations"] = correlations(outcome, draws)
        result["thresholds"] = _threshold_rules(outcome, weights, thresholds)
        result["order"] = _order(outcome)
    return result


def _fixed_thresholds(
    outcome: Outcome, own: Mapping[str, Any], reference: Mapping[str, Any] | None
) -> dict[str, float]:
    """Each variant's threshold fixed in advance: the reference's oracle, else the model's own."""
    found = {}
    for name in outcome.tallies:
        plain = AlignConfig.preset("uncalibrated" if name == "uncalibrated" else "default")
        own_threshold = plain.resolved(own=own).threshold
        assert own_threshold is not None
        known = (reference or {}).get("variants", {}).get(_group(name), {})
        # The mean of several draws' thresholds need not be one of them.
        found[name] = round(known.get("oracle", {}).get("threshold", own_threshold), 2)
    return found


def _group(name: str) -> str:
    """Draws of a random control belong together."""
    head, _, tail = name.partition(":")
    return head if tail.isdecimal() else name


def _variants(
    outcome: Outcome, weights: Tensor, thresholds: Mapping[str, float] | None = None
) -> tuple[dict[str, Any], dict[tuple[str, str], Tensor]]:
    """Figures by name and kind, "oracle" and with thresholds "fixed", and the resamples behind
    them; random draws are averaged."""
    names = list(dict.fromkeys(_group(name) for name in outcome.tallies))
    found: dict[str, Any] = {}
    drawn: dict[tuple[str, str], Tensor] = {}
    for name in names:
        members = (
            [name] if name in outcome.tallies else [f"{name}:{d}" for d in range(RANDOM_DRAWS)]
        )
        rows = {member: outcome.tally(member) for member in members}
        made = {"oracle": [figures(rows[member], weights, None) for member in members]}
        if thresholds is not None:
            made["fixed"] = [figures(rows[m], weights, thresholds[m]) for m in members]
        found[name] = {}
        for kind, each in made.items():
            found[name][kind], drawn[name, kind] = _averaged(each)
    return found, drawn


def _averaged(made: Sequence[tuple[Figures, Tensor]]) -> tuple[dict[str, Any], Tensor]:
    values = torch.stack([values for _, values in made]).mean(0)
    rows = [dataclasses.asdict(one) for one, _ in made]
    mean = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
    mean["miou_low"], mean["miou_high"] = interval(values)
    return {key: _rounded(value) for key, value in mean.items()}, values


def _best_constant(variants: Mapping[str, Any]) -> str:
    names = [f"constant-{c:g}" for c in CONSTANTS]
    return max(names, key=lambda name: float(variants[name]["oracle"]["miou"]))


def _differences(
    variants: dict[str, Any], drawn: Mapping[tuple[str, str], Tensor], base: str
) -> None:
    """Add each variant's paired difference to ``base``."""
    for name, entry in variants.items():
        for kind, one in entry.items():
            point = one["miou"] - variants[base][kind]["miou"]
            one[f"minus_{base}"] = _with_interval(point, drawn[name, kind] - drawn[base, kind])


def _with_interval(point: float, values: Tensor) -> dict[str, Any]:
    low, high = interval(values)
    return {"value": _rounded(point), "low": _rounded(low), "high": _rounded(high)}


def _rounded(value: float) -> Any:
    """Three digits; None for what could not be measured."""
    return None if math.isnan(value) else round(value, 3)


def _by_classes(outcome: Outcome, weights: Tensor) -> dict[str, Any]:
    """Oracle figures of the main variants where 2, 3 or 4 classes are visible."""
    counts = torch.tensor([len(pair["labels"]) for pair in outcome.pairs])
    main = ("uncalibrated", "default", "default-3", "random", "random-3", "reversed", "reversed-3",
            "inverse", "inverse-3", "constant-2", "constant-3", "constant-4",
            "paper", "official", "best-order", "best-order-3")  # fmt: skip
    found: dict[str, Any] = {}
    for count in sorted(set(counts.tolist())):
        chosen = counts == count
        part = Outcome(
            tallies={
                name: [Tally.concatenate(rows).of_images(chosen)]
                for name, rows in outcome.tallies.items()
                if _group(name) in main
            }
        )
        # Images keep their numbers; those left out weigh nothing.
        variants, drawn = _variants(part, weights)
        _differences(variants, drawn, "uncalibrated")
        found[str(count)] = {
            "images": int(chosen.sum()),
            "variants": {name: entry["oracle"] for name, entry in variants.items()},
        }
    return found


def _groups(
    outcome: Outcome, weights: Tensor, thresholds: Mapping[str, float]
) -> dict[str, list[dict[str, Any]]]:
    """IoU of (image, class) pairs by training frequency, area and visible share."""
    rows = outcome.tally("uncalibrated")
    areas, visible = _per_row(outcome, "area"), _per_row(outcome, "visible")
    thirds = frequency_thirds()[(rows.label - 1).clamp_min(0)]
    foreground = rows.label > 0
    edges = torch.quantile(areas[foreground], torch.linspace(0, 1, 11, dtype=torch.float64))
    decile = torch.bucketize(areas, edges[1:-1])
    seen = torch.bucketize(visible, torch.tensor(VISIBLE, dtype=torch.float64))
    limits = (0.0, *VISIBLE, 1.0)
    kinds: dict[str, list[tuple[str, Tensor, bool]]] = {
        "frequency": [
            (name, thirds == third, True)
            for third, name in enumerate(("frequent", "middle", "rare"))
        ],
        "area": [
            (f"{100 * edges[d]:.1f}-{100 * edges[d + 1]:.1f} %", decile == d, False)
            for d in range(10)
        ],
        "visible": [
            (f"{100 * low:g}-{100 * high:g} %", seen == group, False)
            for group, (low, high) in enumerate(pairwise(limits))
        ],
    }
    return {
        kind: [
            {
                "group": name,
                **_group_figures(outcome, chosen & foreground, by_class, weights, thresholds),
            }
            for name, chosen, by_class in groups
        ]
        for kind, groups in kinds.items()
    }


def _per_row(outcome: Outcome, key: str) -> Tensor:
    """float64 [R]: a value of each pair beside the tally's rows, 0 for background."""
    values: list[float] = []
    for pair in outcome.pairs:
        values += [0.0, *pair[key]]
    return torch.tensor(values, dtype=torch.float64)


def _group_figures(
    outcome: Outcome,
    chosen: Tensor,
    by_class: bool,
    weights: Tensor,
    thresholds: Mapping[str, float],
) -> dict[str, Any]:
    """Mean IoU over classes, or (few pairs of each) of all pairs pooled, at fixed thresholds."""
    found: dict[str, Any] = {"pairs": int(chosen.sum())}
    base: tuple[float, Tensor] | None = None
    for name in GROUPED:
        if name not in outcome.tallies or not found["pairs"]:
            continue
        rows = outcome.tally(name).select(chosen)
        if not by_class:
            rows = _as_one_class(rows)
        one, values = figures(rows, weights, thresholds[name])
        own = _with_interval(one.miou, values)
        found[name] = {"iou": own["value"], "low": own["low"], "high": own["high"]}
        if base is None:
            base = one.miou, values
        else:
            difference = _with_interval(one.miou - base[0], values - base[1])
            found[name]["minus_uncalibrated"] = difference
    return found


def _as_one_class(rows: Tally) -> Tally:
    """The pairs pooled, whatever their classes."""
    return dataclasses.replace(rows, label=torch.ones_like(rows.label))


def _threshold_rules(
    outcome: Outcome, weights: Tensor, thresholds: Mapping[str, float]
) -> dict[str, Any]:
    """The oracle, the fixed threshold, Otsu's for each image, and the mean of these two."""
    found: dict[str, Any] = {}
    for name in AUTOMATIC:
        rows = outcome.tally(name)
        chosen = torch.tensor(outcome.automatic[name])
        fixed = threshold_index(thresholds[name])
        rules: dict[str, Callable[[Tensor], Tensor]] = {
            "fixed": lambda t, fixed=fixed: torch.full_like(t, fixed),  # type: ignore[misc]
            "otsu": lambda t: t,
            "mean of both": lambda t, fixed=fixed: (t + fixed) // 2,  # type: ignore[misc]
        }
        oracle, best = figures(rows, weights, None)
        found[name] = {"oracle": {"miou": round(oracle.miou, 3), "threshold": oracle.threshold}}
        for rule, index in rules.items():
            column = index(chosen)[rows.image][:, None]
            at = dataclasses.replace(
                rows, hits=rows.hits.gather(1, column), claimed=rows.claimed.gather(1, column)
            )
            point = 100 * float(curve(at).miou[0, 0])
            values = 100 * curve(at, weights).miou[:, 0]
            found[name][rule] = {
                "miou": round(point, 3),
                "minus_oracle": _with_interval(point - oracle.miou, values - best),
                "threshold": round((1 + float(index(chosen).double().mean())) / 100, 3),
            }
    return found


def _order(outcome: Outcome) -> dict[str, Any]:
    """How often the class of highest loss is the rarest, smallest, most hidden or worst mapped."""
    shares = training_shares()
    hits: dict[str, list[float]] = {"rarest": [], "smallest": [], "most hidden": []}
    chance = []
    for pair in outcome.pairs:
        weak = int(np.argmax(pair["elbo"]))
        frequency = [float(shares[label]) for label in pair["labels"]]
        hits["rarest"].append(float(weak == int(np.argmin(frequency))))
        hits["smallest"].append(float(weak == int(np.argmin(pair["area"]))))
        hits["most hidden"].append(float(weak == int(np.argmin(pair["visible"]))))
        chance.append(1 / len(pair["labels"]))
    found = {name: round(100 * float(np.mean(values)), 2) for name, values in hits.items()}
    return {**found, "chance": round(100 * float(np.mean(chance)), 2)}


def describe_stress(
    outcomes: Mapping[tuple[str, float], Outcome], draws: int
) -> list[dict[str, Any]]:
    """By dial and level: IoU of target and other, and how often the target is the weak one."""
    found = []
    for (dial, level), outcome in outcomes.items():
        images = len(outcome.pairs)
        row: dict[str, Any] = {"dial": dial, "level": level, "images": images}
        if images:
            targets = torch.tensor([pair["target"] + 1 for pair in outcome.pairs])
            weights = bootstrap_weights(images, draws)
            weak = [
                pair["norm"][pair["labels"].index(pair["target"])] == 1 for pair in outcome.pairs
            ]
            row["target_is_weak"] = round(100 * float(np.mean(weak)), 2)
            row["visible"] = round(
                float(
                    np.mean([p["visible"][p["labels"].index(p["target"])] for p in outcome.pairs])
                ),
                4,
            )
            for name in outcome.tallies:
                row[name] = _stress_figures(outcome.tally(name), targets, weights)
        found.append(row)
    return found


def _stress_figures(rows: Tally, targets: Tensor, weights: Tensor) -> dict[str, Any]:
    at = int(curve(rows).miou[0].argmax())
    is_target = rows.label == targets[rows.image]
    chosen = {"target": is_target, "other": (rows.label > 0) & ~is_target}
    found: dict[str, Any] = {"threshold": THRESHOLDS[at]}
    for kind, mask in chosen.items():
        one, values = figures(_as_one_class(rows.select(mask)), weights, THRESHOLDS[at])
        found[kind] = _with_interval(one.miou, values)
    return found


def table(result: Mapping[str, Any]) -> str:
    """The variants as lines of text."""
    lines = [f"{result.get('images', 0)} scenes of {result['split']}; mIoU in percent"]
    lines.append(f"{'':<26}{'oracle':>8} {'95 % interval':>16} {'at':>5} {'fixed':>8} {'at':>5}")
    for name, entry in result.get("variants", {}).items():
        best, fixed = entry["oracle"], entry["fixed"]
        span = f"{best['miou_low']:.1f} to {best['miou_high']:.1f}"
        lines.append(
            f"{name:<26}{best['miou']:>8.2f} {span:>16} {best['threshold']:>5.2f} "
            f"{fixed['miou']:>8.2f} {fixed['threshold']:>5.2f}"
        )
    for row in result.get("stress", []):
        ious = " ".join(
            f"{name} {row[name]['target']['value']:.1f}" for name in GROUPED if name in row
        )
        lines.append(f"stress {row['dial']:<10} {row['level']:.2f} target IoU: {ious}")
    return "\n".join(lines)
