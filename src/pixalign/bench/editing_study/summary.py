"""Figures of the edits: what is there, and what stayed, with intervals over edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pixalign.bench.generation_study.summary import compared, with_interval
from pixalign.bench.metrics import bootstrap_weights

# In percent, and the last two in dB.
FIGURES: dict[str, Callable[[Mapping[str, Any]], list[float]]] = {
    "new": lambda row: [100.0 * (digit == "1") for digit in row["new"]],
    "gone": lambda row: [100.0 * (digit == "1") for digit in row["gone"]],
    "kept": lambda row: [100 * share for share in row["kept"]],
    "outside": lambda row: list(row["outside"]),
    "moved": lambda row: list(row["moved"]),
}


def summarise_edits(result: Mapping[str, Any], draws: int = 1000) -> dict[str, Any]:
    """By row each figure's mean over the edits with its 95 % interval, and its paired difference
    to Prompt-to-Prompt with the same blend; by inversion the mean PSNR and the lowest."""
    weights = bootstrap_weights(result["edits"], draws)
    shares = weights / weights.sum(1, keepdim=True)
    rows = {
        label: {name: torch.tensor(figure(row)).double() for name, figure in FIGURES.items()}
        for label, row in result["rows"].items()
    }
    bases = {label: "ptp, no blend" if label.endswith("no blend") else "ptp" for label in rows}
    summary = {
        label: compared(values, rows[bases[label]], "ptp", shares) for label, values in rows.items()
    }
    inversions = {
        name: {
            key: {**with_interval(torch.tensor(v).double(), shares), "lowest": min(v)}
            for key, v in figures.items()
        }
        for name, figures in result["inversions"].items()
    }
    return {"rows": summary, "inversions": inversions}


def format_edits(result: Mapping[str, Any]) -> str:
    """What the edits did, by method."""
    summary = summarise_edits(result)
    lines = [f"{'':<26}" + "".join(f"{name:>24}" for name in FIGURES)]
    for label, row in summary["rows"].items():
        cells = [
            f"{row[name]['value']:.1f} ({row[name]['low']:.1f} to {row[name]['high']:.1f})"
            for name in FIGURES
        ]
        lines.append(f"{label:<26}" + "".join(f"{cell:>24}" for cell in cells))
    for name, figures in summary["inversions"].items():
        lines.append(f"{name}: {figures['psnr_vae']['value']:.1f} dB from the VAE's own picture")
    return "\n".join(lines)
