"""Figures of the studies: shares of what is there and what stayed, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pixalign.bench.metrics import bootstrap_weights, interval

# In percent; the CLIP score is 100 times a cosine.
GENERATION_FIGURES: dict[str, Callable[[Mapping[str, Any]], list[float]]] = {
    "recall": lambda row: [100 * bits.count("1") / len(bits) for bits in row["found"]],
    "all": lambda row: [100.0 * ("0" not in bits) for bits in row["found"]],
    "coloured": lambda row: [100 * bits.count("1") / len(bits) for bits in row["coloured"]],
    "clip": lambda row: row["clip"],
}


def summarise_generation(result: Mapping[str, Any], draws: int = 1000) -> dict[str, Any]:
    """By set and row: each figure's mean over the pictures with its 95 % interval over prompts,
    and its paired difference to plain sampling; and the seconds of a picture beside plain's."""
    seeds = result["seeds"]
    summary: dict[str, Any] = {}
    for set_name, rows in result["sets"].items():
        shares = resampled(len(rows["plain"]["clip"]) // seeds, draws)
        means = {
            label: {
                name: torch.tensor(figure(row), dtype=torch.float64).reshape(-1, seeds).mean(1)
                for name, figure in GENERATION_FIGURES.items()
                if name == "clip" or "found" in row
            }
            for label, row in rows.items()
        }
        summary[set_name] = {
            label: {
                **compared(values, means["plain"], "plain", shares),
                "seconds": rows[label]["seconds"],
                "cost": rows[label]["seconds"] / rows["plain"]["seconds"],
            }
            for label, values in means.items()
        }
    return summary


def resampled(count: int, draws: int) -> Tensor:
    """float64 [draws, count]: the share of each of ``count`` prompts in resamples of them."""
    weights = bootstrap_weights(count, draws)
    return weights / weights.sum(1, keepdim=True)


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
                between = _spread(row[f"{name}_minus_plain"], "+.2f")
                cells += f"{row[name]['value']:>8.2f}{between:>24}"
            lines.append(f"{cells}{row['cost']:>7.1f}")
    each = f"the first {result['prompts']} prompts of each set, {result['seeds']} pictures each"
    lines.append(f"{each}; shares found in percent; cost in pictures drawn plainly")
    return "\n".join(lines)


# In percent, and the last two in dB.
EDIT_FIGURES: dict[str, Callable[[Mapping[str, Any]], list[float]]] = {
    "new": lambda row: [100.0 * int(digit) for digit in row["new"]],
    "gone": lambda row: [100.0 * int(digit) for digit in row["gone"]],
    "kept": lambda row: [100 * share for share in row["kept"]],
    "outside": lambda row: row["outside"],
    "moved": lambda row: row["moved"],
}


def summarise_edits(result: Mapping[str, Any], draws: int = 1000) -> dict[str, Any]:
    """By row each figure's mean over the edits with its 95 % interval, and its paired difference
    to Prompt-to-Prompt with the same blend; by inversion the mean PSNR and the lowest."""
    shares = resampled(result["edits"], draws)
    rows = {
        label: {name: torch.tensor(figure(row)).double() for name, figure in EDIT_FIGURES.items()}
        for label, row in result["rows"].items()
    }
    bases = {label: "ptp, no blend" if label.endswith("no blend") else "ptp" for label in rows}
    return {
        "rows": {
            label: compared(values, rows[bases[label]], "ptp", shares)
            for label, values in rows.items()
        },
        "inversions": {
            name: {
                key: {**with_interval(torch.tensor(v).double(), shares), "lowest": min(v)}
                for key, v in figures.items()
            }
            for name, figures in result["inversions"].items()
        },
    }


def _spread(entry: Mapping[str, float], form: str) -> str:
    """ "1.5 (1.0 to 2.0)": a value and its interval, each in that format."""
    return f"{entry['value']:{form}} ({entry['low']:{form}} to {entry['high']:{form}})"


def format_edits(result: Mapping[str, Any]) -> str:
    """What the edits did, by method."""
    summary = summarise_edits(result)
    lines = [f"{'':<26}" + "".join(f"{name:>24}" for name in EDIT_FIGURES)]
    for label, row in summary["rows"].items():
        cells = [f"{_spread(row[name], '.1f'):>24}" for name in EDIT_FIGURES]
        lines.append(f"{label:<26}" + "".join(cells))
    for name, figures in summary["inversions"].items():
        lines.append(f"{name}: {figures['psnr_vae']['value']:.1f} dB from the VAE's own picture")
    return "\n".join(lines)
