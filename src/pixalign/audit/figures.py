"""Records in figures: each with its values under resamples of the pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pixalign.alignment.trust import VERDICTS
from pixalign.audit.drawing import faults
from pixalign.audit.records import METHODS, Record
from pixalign.bench.groupings import Resampled, rounded
from pixalign.bench.metrics import Tally, bootstrap_weights, curve, interval, pair_means, tertiles

DRAWS = 1000
NAMES = tuple(kind.name for kind in METHODS)
SCORES = ("standing", "lead", "agreement", "overlap", "confidence", "belief", "sure")
RANKED = "belief"  # the score that ranks classes without masks, chosen in docs/audit.md
SIZES = ("smallest third", "middle third", "largest third")


@dataclass
class Figures:
    """What a subject comes to, by name: overall, by class, by layer, and in groups of pairs."""

    overall: dict[str, Resampled] = field(default_factory=dict)
    classes: dict[str, dict[str, Resampled]] = field(default_factory=dict)
    layers: dict[str, Resampled] = field(default_factory=dict)
    groups: dict[str, dict[str, dict[str, Resampled]]] = field(default_factory=dict)
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of classes, plain numbers


def resamples(groups: Sequence[int]) -> Tensor:
    """float64 [DRAWS, pictures]: how often each counts; those of one group count alike."""
    distinct = sorted(set(groups))
    weights = bootstrap_weights(max(1, len(distinct)), DRAWS)
    return weights[:, [distinct.index(group) for group in groups]]


def mean_of(known: Sequence[tuple[float, int]], weights: Tensor) -> Resampled:
    """The mean of values, each beside its picture's number, and the same under each weighting."""
    values, image = (torch.tensor(column) for column in zip(*known, strict=True))
    return float(values.double().mean()), pair_means(values, image, weights)


def score(row: Mapping[str, Any], name: str) -> float | None:
    """One of `SCORES` of a class in a picture: higher should mean that its map is better."""
    if name == "sure":
        return float(row["verdict"] == "sure")
    if name == "lead":
        return float(row["lead"] - row["others_lead"])
    if name == "belief":
        return float(row["overlap"] * row["confidence"])
    value: float | None = row[name]
    return value


def picture_figures(
    records: Sequence[Record], weights: Tensor, counts: Mapping[str, float] | None = None
) -> Figures:
    """Verdicts and scores, and what masks add where the records know them; shares in percent."""
    rows = [(row, n) for n, record in enumerate(records) for row in record["classes"]]
    found = Figures()
    found.overall = _verdicts(rows, weights) | _scores(rows, weights)
    for name, own in _by_name(rows).items():
        found.classes[name] = _scores(own, weights)
        found.counts[name] = _class_counts(row for row, _ in own)
    for layer in dict.fromkeys(name for record in records for name in record["layers"]):
        there = [(r["layers"][layer], n) for n, r in enumerate(records) if layer in r["layers"]]
        found.layers[layer] = mean_of(there, weights)
    if any("pixels" in record for record in records):
        _add_masks(found, records, weights, counts)
    return found


def _verdicts(rows: Sequence[tuple[Record, int]], weights: Tensor) -> dict[str, Resampled]:
    if not rows:
        return {}
    return {
        verdict: mean_of([(100.0 * (row["verdict"] == verdict), n) for row, n in rows], weights)
        for verdict in VERDICTS
    }


def _scores(rows: Sequence[tuple[Record, int]], weights: Tensor) -> dict[str, Resampled]:
    made = {}
    for name in SCORES[:-1]:
        known = [(value, n) for row, n in rows if (value := score(row, name)) is not None]
        if known:
            made[name] = mean_of(known, weights)
    return made


def _by_name(rows: Sequence[tuple[Record, int]]) -> dict[str, list[tuple[Record, int]]]:
    by_name: dict[str, list[tuple[Record, int]]] = {}
    for row, n in rows:
        by_name.setdefault(row["name"], []).append((row, n))
    return dict(sorted(by_name.items()))


def _class_counts(rows: Iterable[Record]) -> dict[str, Any]:
    """In how many pictures a class is asked for, by verdict, and with whom it is confused."""
    known = list(rows)
    verdicts = Counter(row["verdict"] for row in known)
    others = Counter(row["other"] for row in known if row["other"])
    return {
        "pictures": len(known),
        "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
        "confused_with": dict(others.most_common()),
    }


# ---- with masks ----


def _add_masks(
    found: Figures,
    records: Sequence[Record],
    weights: Tensor,
    counts: Mapping[str, float] | None,
) -> None:
    names = sorted({row["name"] for record in records for row in record["classes"]})
    tallies = {name: method_tally(records, name, names) for name in NAMES}
    for method, tally in tallies.items():
        point, drawn = curve(tally), curve(tally, weights)
        found.overall[f"miou_{method}"] = (100 * float(point.miou[0, 0]), 100 * drawn.miou[:, 0])
        for label, name in enumerate(names, 1):
            own = tally.select(tally.label == label)
            drawn = curve(own, weights)
            value = 100 * float(curve(own).miou[0, 0])
            found.classes[name][f"iou_{method}"] = (value, 100 * drawn.miou[:, 0])
    for title, labels in _groupings(records, counts).items():
        found.groups[title] = _grouped(tallies, labels, weights)


def method_tally(records: Sequence[Record], method: str, names: Sequence[str]) -> Tally:
    """The pixels of a method's masks at its threshold: T = 1. Background first in each picture."""
    image, label, true, hits, claimed = [], [], [], [], []
    for n, record in enumerate(records):
        pixels = torch.tensor(record["pixels"][method])
        image += [n] * len(pixels)
        label += [0, *(names.index(row["name"]) + 1 for row in record["classes"])]
        true.append(pixels.sum(1))
        claimed.append(pixels.sum(0)[:, None])
        hits.append(pixels.diagonal()[:, None])
    columns = (torch.cat(true), torch.cat(hits), torch.cat(claimed))
    return Tally(torch.tensor(image), torch.tensor(label), *columns)


def _groupings(
    records: Sequence[Record], counts: Mapping[str, float] | None
) -> dict[str, list[str]]:
    """By title the group of each (picture, class) pair, "" for the background."""
    areas = sorted(row["area"] for record in records for row in record["classes"])
    edges = [areas[len(areas) * part // 3] for part in (1, 2)] if areas else []

    def labels(group: Any) -> list[str]:
        return [x for r in records for x in ("", *(group(r, row) for row in r["classes"]))]

    made = {
        "size": labels(lambda _, row: SIZES[sum(row["area"] >= edge for edge in edges)]),
        "classes in the picture": labels(lambda r, _: _crowd(len(r["classes"]))),
    }
    if counts is not None:
        named = {row["name"] for record in records for row in record["classes"]}
        group_of = tertiles({name: counts[name] for name in sorted(named)})
        made["frequency"] = labels(lambda _, row: group_of[row["name"]])
    return made


def _crowd(classes: int) -> str:
    return str(classes) if classes < 5 else "5 or more"


def _grouped(
    tallies: Mapping[str, Tally], labels: Sequence[str], weights: Tensor
) -> dict[str, dict[str, Resampled]]:
    """The mean IoU of a group's pairs by method, in percent; and how many pairs there are."""
    order = [*SIZES, "rare", "common", "frequent"]
    present = sorted({label for label in labels if label}, key=lambda x: (x in order, x))
    present.sort(key=lambda x: order.index(x) if x in order else 0)
    made: dict[str, dict[str, Resampled]] = {}
    for group in present:
        chosen = torch.tensor([label == group for label in labels])
        made[group] = {"pairs": (float(chosen.sum()), torch.zeros(0))}
        for method, tally in tallies.items():
            ious = (100 * tally.ious()[chosen, 0]).tolist()
            pairs = list(zip(ious, tally.image[chosen].tolist(), strict=True))
            made[group][method] = mean_of(pairs, weights)
    return made


def confused_pixels(records: Sequence[Record], method: str) -> list[dict[str, Any]]:
    """Of each class's true pixels the share that a method gives to another, most first.

    Pixels count in pictures where both classes are asked for; of the background in all.
    """
    true: Counter[tuple[str, str]] = Counter()
    called: Counter[tuple[str, str]] = Counter()
    seen: Counter[tuple[str, str]] = Counter()
    for record in records:
        names = ["background", *(row["name"] for row in record["classes"])]
        for one, counts in zip(names[1:], record["pixels"][method][1:], strict=True):
            for other, pixels in zip(names, counts, strict=True):
                seen[one, other] += 1
                true[one, other] += sum(counts)
                called[one, other] += pixels
    rows = [
        {
            "true": one,
            "called": other,
            "percent": rounded(100 * called[one, other] / max(1, true[one, other]), 2),
            "pictures": seen[one, other],
        }
        for one, other in called
        if called[one, other] or one == other
    ]
    return sorted(rows, key=lambda row: (-row["percent"], row["true"], row["called"]))


# ---- of prompts ----


def prompt_figures(records: Sequence[Record], weights: Tensor) -> Figures:
    """Rates in percent: of entities neglected, pairs merged, attributes leaked, pictures whole."""
    found = Figures()
    judged = [faults(record) for record in records]
    rates = {
        "neglected": [(flag, n) for n, each in enumerate(judged) for flag in each.neglected],
        "merged": [(flag, n) for n, each in enumerate(judged) for *_, flag in each.pairs],
        "leaked": [(flag, n) for n, each in enumerate(judged) for *_, flag in each.attributes],
        "whole": [(each.none, n) for n, each in enumerate(judged)],
    }
    for name, known in rates.items():
        if known:
            found.overall[name] = mean_of([(100.0 * value, n) for value, n in known], weights)
    rows = [
        (row | {"neglected": flag}, n)
        for n, (record, each) in enumerate(zip(records, judged, strict=True))
        for row, flag in zip(record["classes"], each.neglected, strict=True)
    ]
    for name, own in _by_name(rows).items():
        missing = [(100.0 * row["neglected"], n) for row, n in own]
        found.classes[name] = {"neglected": mean_of(missing, weights)}
        found.counts[name] = _class_counts(row for row, _ in own)
    return found


def entry(value: Resampled) -> dict[str, float | None]:
    """A figure with the interval that holds 95 % of its resamples."""
    point, drawn = value
    low, high = interval(drawn) if len(drawn) else (point, point)
    return {"value": rounded(point), "low": rounded(low), "high": rounded(high)}
