"""Thresholds, temperatures and strength of a model, chosen on pictures whose masks are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d

from pixalign.bench.datasets import Dataset
from pixalign.bench.measuring import Bench
from pixalign.bench.metrics import IGNORE, THRESHOLDS, Tally, curve, tally
from pixalign.bench.spec import SpecRow
from pixalign.bench.subject import Subject
from pixalign.core.maps import resize
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel

STRENGTHS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)  # 1 / gamma
FITTED = ("dense", "elbo", "attention", "likelihood")
TEMPERATURES = tuple(round(0.02 * 1.15**step, 4) for step in range(24))  # 0.02 to 0.5
BORDER = 3  # pixels around an object that count as its border
_SIDE = 128  # of the heatmaps that temperatures are fitted on


def fit_settings(model: AlignmentModel, dataset: Dataset, *, show: bool = True) -> dict[str, Any]:
    """A model's settings with gamma, thresholds and temperatures that suit a dataset best.

    Gamma, centred or not, is the one under which method "elbo" reaches the highest mIoU at its best
    threshold; each of `FITTED` has the threshold of its highest mIoU, and the temperature at which
    its probabilities explain the truth best. "methods" has these figures, in percent and on the
    very pictures that were fitted; "pictures" how many there were.
    """
    powers = {
        f"elbo {centred} {strength}": (1 / strength, centred)
        for centred in (False, True)
        for strength in STRENGTHS
    }
    changes = {name: {"gamma": g, "centred": centred} for name, (g, centred) in powers.items()}
    others = [name for name in FITTED if name != "elbo"]
    rows = [
        SpecRow(name=name, method=name.split()[0], set=changes.get(name, {}), baseline=name)
        for name in (*others, *powers)
    ]
    tallies, heatmaps, truths = _measured(Bench(rows, model), dataset, show)
    reached = {name: best_threshold(own) for name, own in tallies.items()}
    chosen = max(powers, key=lambda name: reached[name][0])
    methods = {}
    for name, row in {**{name: name for name in others}, "elbo": chosen}.items():
        miou, threshold = reached[row]
        temperature = best_temperature(heatmaps[row], truths, threshold)
        methods[name] = {"miou": miou, "threshold": threshold, "temperature": temperature}
    gamma, centred = powers[chosen]
    settings = {**model.settings, "gamma": gamma, "centred": centred, **by_method(methods)}
    return {"settings": settings, "pictures": len(truths), "methods": methods}


def _measured(
    bench: Bench, dataset: Dataset, show: bool
) -> tuple[dict[str, list[Tally]], dict[str, list[Tensor]], list[Tensor]]:
    """By row: counts, and small heatmaps in half precision; and the true labels beside these."""
    tallies: dict[str, list[Tally]] = defaultdict(list)
    heatmaps: dict[str, list[Tensor]] = defaultdict(list)
    truths: list[Tensor] = []
    with Progress(len(dataset), f"fit on {dataset.name}", show, "image") as progress:
        for index in range(len(dataset)):
            subject = Subject(dataset[index], index, dataset.classes, 0)
            progress.advance(1)
            if not subject.labels:
                continue
            labels = [label + 1 for label in subject.labels]
            scale = min(1.0, _SIDE / max(subject.size))
            height, width = (max(1, round(side * scale)) for side in subject.size)
            for _, row, made in bench.heatmaps([subject]):
                tallies[row.name] += tally(made, subject.truth, labels, index)
                small = resize(made[0].float().cpu(), (height, width))
                heatmaps[row.name].append(small.half())
            truth = subject.truth[None, None].float()
            truths.append(interpolate(truth, (height, width), mode="nearest-exact")[0, 0].long())
    if not truths:
        raise ValueError(f"{dataset.name} has no picture with a class; there is nothing to fit")
    return tallies, heatmaps, truths


def best_threshold(tallies: Sequence[Tally]) -> tuple[float, float]:
    """The highest mIoU of any threshold, in percent, and that threshold."""
    values = curve(Tally.concatenate(tallies)).miou[0]
    index = int(torch.argmax(values))
    return round(100 * float(values[index]), 3), THRESHOLDS[index]


def by_method(methods: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Thresholds and temperatures as pixalign.json has them."""
    return {
        key: {name: own[key] for name, own in methods.items()}
        for key in ("threshold", "temperature")
    }


def logits(heatmaps: Tensor, threshold: float) -> Tensor:
    """[N + 1, H, W] of `Alignment.probs` before the temperature: the threshold is background's."""
    return torch.cat([torch.full_like(heatmaps[:1], threshold), heatmaps])


def best_temperature(
    heatmaps: Sequence[Tensor], truths: Sequence[Tensor], threshold: float
) -> float:
    """The temperature of highest likelihood of the true labels int64 [H, W].

    All pixels that count are half of it, and objects with their borders alone the other half: the
    background, which is most of a picture, is easy.
    """
    losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    for maps, truth in zip(heatmaps, truths, strict=True):
        known = truth != IGNORE
        labels = torch.where(known, truth, 0)
        values = logits(maps.float(), threshold)
        own, near = values.gather(0, labels[None])[0], near_objects(labels) & known
        for place, temperature in enumerate(TEMPERATURES):
            spread = torch.logsumexp(values / temperature, 0) - own / temperature
            parts = [spread[part].double().mean() for part in (known, near) if part.any()]
            losses[place] += torch.stack(parts).mean() if parts else 0
    return TEMPERATURES[int(losses.argmin())]


def near_objects(truth: Tensor) -> Tensor:
    """bool [H, W]: the pixels of true objects, and those up to `BORDER` from one."""
    objects = (truth > 0).float()[None, None]
    return max_pool2d(objects, 2 * BORDER + 1, 1, BORDER)[0, 0] > 0
