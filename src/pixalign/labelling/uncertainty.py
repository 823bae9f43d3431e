"""How doubtful a picture's labels are, from what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pixalign.labelling.records import LabelledPicture

_HALF = 0.3  # the standing that counts as one half


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


def least_standing(record: Mapping[str, Any]) -> float | None:
    """The least share of a picture that a drawn class alone explains (`alignment.trust.standing`);
    None where no evidence was gathered, or nothing is drawn."""
    trusts = [known["trust"] for known in record["classes"] if known["share"] > 0]
    return min((trust["numbers"]["standing"] for trust in trusts if trust), default=None)


def uncertainty(picture: LabelledPicture) -> float:
    """Up to 1: how much the least certain class of a picture is in doubt.

    The mean of 1 - p and of c / (c + s), where p is the mean probability of the `least_certain`
    class and s is `least_standing`. Without evidence the entropy takes the latter's place. Chosen
    among means of such numbers on val scenes; what the verdicts say made the order worse there.
    """
    certain, stands = least_certain(picture), least_standing(picture.record)
    improbable = 0.0 if certain is None else 1 - certain[1]
    if stands is None:
        return float((improbable + picture.record["entropy"]) / 2)
    return float((improbable + _HALF / (_HALF + stands)) / 2)


def doubts(record: Mapping[str, Any]) -> list[str]:
    """What is in doubt of the classes that are drawn, a verdict each: "absent: dog, cat"."""
    said: dict[str, list[str]] = {}
    for known in record["classes"]:
        trust = known["trust"]
        if trust and known["share"] > 0 and trust["verdict"] != "sure":
            other = f" with {trust['other']}" if trust["other"] else ""
            said.setdefault(trust["verdict"] + other, []).append(known["name"])
    return [f"{verdict}: {', '.join(names)}" for verdict, names in said.items()]
