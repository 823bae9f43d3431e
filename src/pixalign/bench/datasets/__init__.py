"""Segmentation datasets with one face, and how often captions name a class."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from pixalign.bench.datasets.aep import HINT, open_aep
from pixalign.bench.datasets.coco import open_coco
from pixalign.bench.datasets.lab import open_lab, open_lab_toy
from pixalign.bench.datasets.layouts import (
    Layout,
    check_root,
    open_ade20k,
    open_context,
    open_folder,
)
from pixalign.bench.datasets.sample import Check, Dataset, Sample, check
from pixalign.bench.datasets.voc import open_voc
from pixalign.core.checks import check_choice

__all__ = ["DATASETS", "Check", "Dataset", "Sample", "check", "find_datasets", "open_dataset"]


_VOC, _ADE = "VOCdevkit/VOC", "ADEChallengeData2016"
_SPLITS, _ALL, _LAB = ("val", "train"), ("all",), ("test", "val")

DATASETS: dict[str, Layout] = {
    "voc": Layout(
        open_voc, (*_SPLITS, "trainval"), (f"{_VOC}2012",), ("JPEGImages", "ImageSets/Segmentation")
    ),
    "context": Layout(
        open_context, _SPLITS, (f"{_VOC}2010",), ("JPEGImages", "SegmentationClassContext")
    ),
    "coco": Layout(open_coco, _SPLITS, ("coco_stuff164k", "coco"), ("images", "annotations")),
    "ade20k": Layout(open_ade20k, _SPLITS, (f"ade/{_ADE}", _ADE), ("images", "annotations")),
    "aep": Layout(open_aep, _ALL, ("aep", "."), ("images", "annotations", "phrases.json"), HINT),
    "folder": Layout(open_folder, _ALL, (".",), ("images", "masks", "classes.txt")),
    "lab": Layout(partial(open_lab, "lab"), _LAB),
    "lab-phrases": Layout(partial(open_lab, "lab-phrases"), _LAB),
    "lab-toy": Layout(open_lab_toy, _ALL),
}


def open_dataset(
    name: str, root: Path | None, split: str | None = None, limit: int | None = None
) -> Dataset:
    """A dataset whose every listed file is known to exist; ``limit`` takes the first so many keys.

    ``root`` is the folder that holds VOCdevkit, coco_stuff164k and so on; the lab's scenes need
    none. Of those, ``limit`` says how many are drawn (in "lab-toy" of each level).
    """
    check_choice("dataset", name, tuple(DATASETS))
    entry = DATASETS[name]
    split = entry.splits[0] if split is None else split
    check_choice(f"split of {name}", split, entry.splits)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit!r}; allowed: 1 or more, or None for all")
    if not entry.homes:
        return entry.open(split, limit)
    if root is None:
        raise ValueError(f"dataset {name!r} needs a root: the folder that holds {entry.wanted}")
    dataset = entry.open(entry.find(Path(root)), split)
    return dataclasses.replace(dataset, keys=dataset.keys[:limit])


def find_datasets(root: Path) -> list[str]:
    """The names of the datasets that stand below this root."""
    check_root(root)
    return [name for name, layout in DATASETS.items() if layout.home(root) is not None]
