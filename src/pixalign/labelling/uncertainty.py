"""How doubtful a picture's labels are, from what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def uncertainty(record: Mapping[str, Any]) -> float:
    """0 where nothing is in doubt, up to 1.

    The mean of the share of drawn classes whose verdict is not "sure", of 1 - margin, and of the
    entropy.
    """
    drawn = [known for known in record["classes"] if known["share"] > 0]
    doubted = [known for known in drawn if known["trust"] and known["trust"]["verdict"] != "sure"]
    share = len(doubted) / len(drawn) if drawn else 0.0
    return float((share + 1 - record["margin"] + record["entropy"]) / 3)


def doubts(record: Mapping[str, Any]) -> list[str]:
    """What is in doubt of the classes that are drawn, a verdict each: "absent: dog, cat"."""
    said: dict[str, list[str]] = {}
    for known in record["classes"]:
        trust = known["trust"]
        if trust and known["share"] > 0 and trust["verdict"] != "sure":
            other = f" with {trust['other']}" if trust["other"] else ""
            said.setdefault(trust["verdict"] + other, []).append(known["name"])
    return [f"{verdict}: {', '.join(names)}" for verdict, names in said.items()]
