"""Figures of compositional generation: shares of what is there, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pixalign.bench.metrics import bootstrap_weights, interval

FIGURES: dict[str, Callable[[Mapping[str, Any]], list[float]]] = {
    "recall": lambda row: [100 * bits.count("1") / len(bits) for bits in row["found"]],
    "all": lambda row: [100.0 * ("0" not in bits) for bits in row["found"]],
    "coloured": lambda row: [100 * bits.count("1") / len(bits) for bits in row["coloured"]],
    "clip": lambda row: list(row["clip"]),
}


def summarise_generation(result: Mapping[str, Any], draws: int = 1000) -> dict[str, Any]:
    """By set and row: each figure's mean over the pictures with its 95 % interval over prompts,
    and its paired difference to plain sampling; and the seconds of a picture beside plain's."""
    seeds = result["seeds"]
    summary: dict[str, Any] = {}
    for set_name, rows in result["sets"].items():
        weights = bootstrap_weights(len(rows["plain"]["clip"]) // seeds, draws)
        shares = weights / weights.sum(1, keepdim=True)
        summary[set_name] = {}
        means = {
            label: {
                name: _by_prompt(figure(row), seeds)
                for name, figure in FIGURES.items()
                if name == "clip" or "found" in row
            }
            for label, row in rows.items()
        }
        for label, values in means.items():
            seconds = rows[label]["seconds"]
            summary[set_name][label] = {
                **compared(values, means["plain"], "plain", shares),
                "seconds": seconds,
                "cost": seconds / rows["plain"]["seconds"],
            }
    return summary


def returned(result: Mapping[str, Any], label: str = "elbo") -> dict[str, int]:
    """Over all sets: objects that plain sampling lacks and a method draws, and the other way.

    "redrawn" are those missing ones that plain sampling draws with the prompt's next seed: what
    mere change returns.
    """
    counts = {"asked": 0, "missing": 0, "returned": 0, "lost": 0, "redrawn": 0}
    seeds = result["seeds"]
    for rows in result["sets"].values():
        if label not in rows:  # a run that was stopped
            continue
        plain = rows["plain"]["found"]
        for picture, (before, after) in enumerate(zip(plain, rows[label]["found"], strict=True)):
            first = picture - picture % seeds
            other = plain[first + (picture + 1 - first) % seeds]
            counts["asked"] += len(before)
            counts["missing"] += before.count("0")
            pairs = list(zip(before, after, strict=True))
            counts["returned"] += pairs.count(("0", "1"))
            counts["lost"] += pairs.count(("1", "0"))
            counts["redrawn"] += list(zip(before, other, strict=True)).count(("0", "1"))
    return counts


def _by_prompt(values: list[float], seeds: int) -> Tensor:
    """float64 [P]: the mean over each prompt's pictures."""
    return torch.tensor(values, dtype=torch.float64).reshape(-1, seeds).mean(1)


def compared(
    values: Mapping[str, Tensor], base: Mapping[str, Tensor], name: str, shares: Tensor
) -> dict[str, Any]:
    """Each figure [P] of a row with its interval, and its paired difference to the row ``name``."""
    entry = {}
    for figure, each in values.items():
        entry[figure] = with_interval(each, shares)
        entry[f"{figure}_minus_{name}"] = with_interval(each - base[figure], shares)
    return entry


def with_interval(each: Tensor, shares: Tensor) -> dict[str, float]:
    """The mean of values [P], and its 95 % interval over resamples of shares [draws, P]."""
    low, high = interval(shares @ each)
    return {"value": float(each.mean()), "low": low, "high": high}


def format_generation(result: Mapping[str, Any]) -> str:
    """By set and method: what is there of the objects asked for, the CLIP score, and the cost."""
    lines = []
    for set_name, rows in summarise_generation(result).items():
        lines.append(
            f"{set_name:<16}{'found':>8}{'- plain':>24}{'CLIP':>8}{'- plain':>24}{'cost':>7}"
        )
        for label, row in rows.items():
            cells = f"{label:<16}"
            for name in ("recall", "clip"):
                if name not in row:
                    cells += f"{'':>32}"
                    continue
                apart = row[f"{name}_minus_plain"]
                between = f"{apart['value']:+.2f} ({apart['low']:+.2f} to {apart['high']:+.2f})"
                cells += f"{row[name]['value']:>8.2f}{between:>24}"
            lines.append(f"{cells}{row['cost']:>7.1f}")
    each = f"the first {result['prompts']} prompts of each set, {result['seeds']} pictures each"
    lines.append(f"{each}; shares found in percent; cost in pictures drawn plainly")
    return "\n".join(lines)
