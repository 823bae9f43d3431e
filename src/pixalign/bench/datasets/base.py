"""Every dataset by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pixalign.bench.datasets import ade20k, aep, coco, context, folder, lab, voc
from pixalign.bench.datasets.checking import Check, check
from pixalign.bench.datasets.files import FileDataset, Place, check_root
from pixalign.bench.datasets.sample import Dataset, Sample
from pixalign.core.checks import check_choice

__all__ = [
    "DATASETS",
    "Check",
    "Dataset",
    "Drawn",
    "Layout",
    "Sample",
    "check",
    "find_datasets",
    "open_dataset",
]


@dataclass(frozen=True)
class Layout:
    """A dataset in files: ``open`` takes its folder and a split, of which the first is usual."""

    open: Callable[[Path, str], FileDataset]
    splits: tuple[str, ...]
    place: Place


@dataclass(frozen=True)
class Drawn:
    """A dataset that is drawn: ``open`` takes a split, of which the first is usual, and a limit."""

    open: Callable[[str, int | None], Dataset]
    splits: tuple[str, ...]


DATASETS: dict[str, Layout | Drawn] = {
    "voc": Layout(voc.open_voc, voc.SPLITS, voc.PLACE),
    "context": Layout(context.open_context, context.SPLITS, context.PLACE),
    "coco": Layout(coco.open_coco, coco.SPLITS, coco.PLACE),
    "ade20k": Layout(ade20k.open_ade20k, ade20k.SPLITS, ade20k.PLACE),
    "aep": Layout(aep.open_aep, aep.SPLITS, aep.PLACE),
    "folder": Layout(folder.open_folder, folder.SPLITS, folder.PLACE),
    "lab": Drawn(lab.open_lab, lab.SPLITS),
    "lab-phrases": Drawn(lab.open_lab_phrases, lab.SPLITS),
    "lab-toy": Drawn(lab.open_lab_toy, lab.TOY_SPLITS),
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
    if isinstance(entry, Drawn):
        return entry.open(split, limit)
    if root is None:
        wanted = entry.place.wanted
        raise ValueError(f"dataset {name!r} needs a root: the folder that holds {wanted}")
    dataset = entry.open(entry.place.find(Path(root)), split)
    return dataset if limit is None else dataclasses.replace(dataset, keys=dataset.keys[:limit])


def find_datasets(root: Path) -> list[str]:
    """The names of the datasets that stand below this root."""
    check_root(Path(root))
    layouts = {name: entry for name, entry in DATASETS.items() if isinstance(entry, Layout)}
    return [name for name, entry in layouts.items() if entry.place.home(Path(root)) is not None]
