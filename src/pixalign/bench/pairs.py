"""What goes with what over (image, class) pairs: rank correlations, and the highest loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.bench.metrics import interval
from pixalign.bench.store import ImageRow

DRAWS = 400  # resamples of images that an interval rests on, at most
_MULTIPLES = ("frequency", "area", "activation")  # are compared by their logarithms
_LOWEST = {"smallest": "area", "rarest": "frequency", "most hidden": "visible"}


def correlations(
    images: Sequence[ImageRow], header: Mapping[str, Any], ious: Tensor | None, weights: Tensor
) -> dict[str, list[float]] | None:
    """Spearman's over pairs, "a~b": [value, low, high]; values are relative to their image's mean.

    The ELBO is the loss: positive means a worse explanation. ``ious`` [R] are the baseline's, of
    the background too. Intervals resample images by weights [B, images].
    """
    known = _known([image for image in images if image.labels], header)
    if ious is None or "elbo" not in known:
        return None
    rows = torch.tensor([place > 0 for i in images for place in range(len(i.labels) + 1)])
    pairs = {name: np.array([x for each in values for x in each]) for name, values in known.items()}
    pairs |= {name: np.log(pairs[name].clip(1e-12)) for name in _MULTIPLES if name in pairs}
    pairs["iou"] = ious[rows].numpy()
    owner = np.array([n for n, image in enumerate(images) for _ in image.labels], dtype=np.int64)
    members = np.maximum(np.bincount(owner, minlength=len(images)), 1)
    within = {
        name: values - (np.bincount(owner, values, len(images)) / members)[owner]
        for name, values in pairs.items()
    }
    others = [name for name in within if name not in ("elbo", "iou")]
    tests = [("elbo", name) for name in (*others, "iou")] + [("iou", name) for name in others]
    often = weights[:DRAWS].long()[:, torch.from_numpy(owner)].numpy()
    return {f"{a}~{b}": _interval(within[a], within[b], often) for a, b in tests}


def _known(images: Sequence[ImageRow], header: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is known of the classes of all images with any: by name, image and class."""
    counts, classes = header["counts"], header["classes"]
    values: dict[str, list[Any]] = {
        "elbo": [image.elbo for image in images],
        "frequency": [counts and [counts[classes[x]] for x in image.labels] for image in images],
        "area": [image.area for image in images],
        "visible": [image.visible for image in images],
        "activation": [image.activation for image in images],
    }
    return {name: column for name, column in values.items() if all(column)}


def _interval(a: np.ndarray, b: np.ndarray, often: np.ndarray) -> list[float]:
    drawn = [spearman(np.repeat(a, times), np.repeat(b, times)) for times in often]
    return [round(x, 3) for x in (spearman(a, b), *interval(torch.tensor(drawn)))]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of ranks; ties share their mean rank; 0 where either is constant."""
    first, second = (_ranks(values) - (len(values) + 1) / 2 for values in (a, b))
    scale = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / scale) if scale > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return ranks


def highest_loss(images: Sequence[ImageRow], header: Mapping[str, Any]) -> dict[str, Any] | None:
    """In how many percent of the images the class of highest loss is the rarest, and so on.

    Of images with two classes or more; "chance" is what a random class would come to. "target"
    has, by group, how often it is the class that a dial changes.
    """
    shown = [image for image in images if len(image.labels) > 1 and image.elbo]
    if not shown:
        return None
    weak = [int(np.argmax(image.elbo or ())) for image in shown]
    known = _known(shown, header)
    shares: dict[str, Any] = {
        title: _percent([w == int(np.argmin(x)) for w, x in zip(weak, known[name], strict=True)])
        for title, name in _LOWEST.items()
        if name in known
    }
    shares["chance"] = _percent([1 / len(image.labels) for image in shown])
    targets: dict[str, list[bool]] = {}
    for image, index in zip(shown, weak, strict=True):
        if image.target in image.labels:
            targets.setdefault(image.group, []).append(image.labels[index] == image.target)
    return shares | {"target": {group: _percent(hits) for group, hits in targets.items()}}


def _percent(values: Sequence[float]) -> float:
    return round(100 * float(np.mean(values)), 2)
