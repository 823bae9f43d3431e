"""How doubtful a picture's labels are, from what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pixalign.labelling.records import LabelledPicture


def least_certain(picture: LabelledPicture) -> tuple[int, float] | None:
    """The label of the drawn class that is least probable over its own pixels, and that mean
    probability; None where nothing is drawn."""
    areas: dict[int, int] = {}
    sums: dict[int, float] = {}
    for segment in picture.segments:
        areas[segment.label] = areas.get(segment.label, 0) + segment.area
        sums[segment.label] = sums.get(segment.label, 0.0) + segment.area * segment.score
    means = {label: sums[label] / areas[label] for label in areas}
    return min(means.items(), key=lambda pair: pair[1]) if means else None


def uncertainty(picture: LabelledPicture) -> float:
    """0 where nothing is in doubt, up to 1.

    The mean of the entropy and of 1 - the mean probability of the least certain class. Of what was
    tried on val scenes (benchmarks/labelling.py), verdicts made the order worse.
    """
    least = least_certain(picture)
    doubted = 0.0 if least is None else 1 - least[1]
    return float((doubted + picture.record["entropy"]) / 2)


def doubts(record: Mapping[str, Any]) -> list[str]:
    """What is in doubt of the classes that are drawn, a verdict each: "absent: dog, cat"."""
    said: dict[str, list[str]] = {}
    for known in record["classes"]:
        trust = known["trust"]
        if trust and known["share"] > 0 and trust["verdict"] != "sure":
            other = f" with {trust['other']}" if trust["other"] else ""
            said.setdefault(trust["verdict"] + other, []).append(known["name"])
    return [f"{verdict}: {', '.join(names)}" for verdict, names in said.items()]
