"""A look at every mask and every picture's header before hours are spent on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pixalign.bench.datasets.sample import Dataset, present_in
from pixalign.bench.metrics import IGNORE
from pixalign.core.progress import Progress

_NAMED = 3  # problems that are told


@dataclass(frozen=True)
class Check:
    """What a dataset holds; shares are of all its pixels."""

    name: str
    split: str
    images: int
    heights: tuple[int, int]  # smallest, largest
    widths: tuple[int, int]
    ignored: float
    background: float
    images_per_class: Mapping[str, int]  # every class, also those that never occur
    empty: int  # images without any class


def check(dataset: Dataset, progress: bool = False) -> Check:
    """Read all; the first problems are raised together, with how many there are."""
    problems: list[str] = []
    images: Counter[int] = Counter()
    heights, widths = [], []
    ignored = background = pixels = empty = 0
    with Progress(len(dataset), f"check {dataset.name}", progress, "image") as bar:
        for index in range(len(dataset)):
            bar.advance(1)
            try:
                size, truth = dataset.size(index), dataset.truth(index)
                dataset.compare(index, size, truth)
            except (ValueError, OSError) as error:
                problems.append(str(error))
                continue
            present = present_in(truth)
            images.update(present)
            empty += not present
            heights.append(size[0])
            widths.append(size[1])
            ignored += int(np.count_nonzero(truth == IGNORE))
            background += int(np.count_nonzero(truth == 0))
            pixels += truth.size
    if problems:
        more = f"\nand {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise ValueError("\n".join(problems[:_NAMED]) + more)
    return Check(
        name=dataset.name,
        split=dataset.split,
        images=len(dataset),
        heights=(min(heights), max(heights)),
        widths=(min(widths), max(widths)),
        ignored=ignored / pixels,
        background=background / pixels,
        images_per_class={name: images[index] for index, name in enumerate(dataset.classes)},
        empty=empty,
    )
