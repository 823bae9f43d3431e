"""Rank correlations of what is known about (image, class) pairs, with intervals over images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lab.outcome import Outcome
from pixalign.bench.metrics import curve, interval
from pixalign.scenes.atlas import training_shares


def correlations(outcome: Outcome, draws: int) -> dict[str, Any]:
    """Spearman correlations over (image, class) pairs, all values relative to their image's mean.

    The ELBO is the loss: positive means a worse explanation. Intervals resample images.
    """
    shares = np.log(training_shares())
    columns: dict[str, list[float]] = {}
    owner: list[int] = []
    rows = outcome.tally("uncalibrated")
    at = int(curve(rows).miou[0].argmax())
    iou = rows.ious()[:, at][rows.label > 0].tolist()
    place = 0
    for image, pair in enumerate(outcome.pairs):
        count = len(pair["labels"])
        values = {
            "elbo": pair["elbo"],
            "frequency": [float(shares[label]) for label in pair["labels"]],
            "area": np.log(pair["area"]).tolist(),
            "visible": pair["visible"],
            "activation": np.log(pair["activation"]).tolist(),
            "iou": iou[place : place + count],
        }
        place += count
        for name, column in values.items():
            mean = sum(column) / count
            columns.setdefault(name, []).extend(value - mean for value in column)
        owner += [image] * count
    arrays = {name: np.array(column) for name, column in columns.items()}
    images = np.array(owner)
    tests = [("elbo", x) for x in ("frequency", "area", "visible", "activation", "iou")]
    tests += [("iou", x) for x in ("frequency", "area", "visible", "activation")]
    return {
        f"{a}~{b}": _spearman_interval(arrays[a], arrays[b], images, min(draws, 400))
        for a, b in tests
    }


def _spearman_interval(a: np.ndarray, b: np.ndarray, images: np.ndarray, draws: int) -> Any:
    rng = np.random.default_rng(0)
    starts = np.searchsorted(images, np.arange(images.max() + 2))
    values = []
    for _ in range(draws):
        picks = rng.integers(0, images.max() + 1, images.max() + 1)
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in picks])
        values.append(spearman(a[rows], b[rows]))
    low, high = interval(torch.tensor(values))
    return {"value": round(spearman(a, b), 3), "low": round(low, 3), "high": round(high, 3)}


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of ranks; ties share their mean rank; 0 where either is constant."""
    ranks = [_ranks(x) for x in (a, b)]
    centred = [rank - rank.mean() for rank in ranks]
    scale = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    return float((centred[0] * centred[1]).sum() / scale) if scale > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return ranks
