"""Segmentation datasets with one face, and how often captions name a class."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pixalign.bench.datasets.aep import HINT, open_aep
from pixalign.bench.datasets.coco import open_coco
from pixalign.bench.datasets.files import shortened
from pixalign.bench.datasets.lab import open_lab, open_lab_toy
from pixalign.bench.datasets.layouts import open_ade20k, open_context, open_folder, open_voc
from pixalign.bench.datasets.sample import Check, Dataset, Sample, check
from pixalign.core.checks import check_choice

__all__ = [
    "DATASETS",
    "Check",
    "Dataset",
    "Sample",
    "check",
    "find_datasets",
    "near_misses",
    "open_dataset",
]

_LEVELS = 4  # how far above a root its dataset is looked for


@dataclass(frozen=True)
class Layout:
    """A dataset, in the first of ``homes`` below a root that holds all ``parts``; "a|b" is either.

    ``open`` takes that folder and a split, of which the first is usual. A dataset without homes is
    drawn; its ``open`` takes a split and a limit.
    """

    open: Callable[..., Dataset]
    splits: tuple[str, ...]
    homes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    hint: str = ""  # how a missing part is made

    @property
    def wanted(self) -> str:
        """What a root must hold, in words."""
        parts = ", ".join(self.parts).replace("|", " or ")
        return " or ".join(parts if home == "." else home for home in self.homes)

    def home(self, root: Path) -> Path | None:
        """The folder of the layout, if it stands below this root, or the root in its way."""
        here = root.resolve()
        for folder in (root, *here.parents[:_LEVELS]):
            for home in (folder / home for home in self.homes):
                if not self._lacking(home) and (folder == root or home.is_relative_to(here)):
                    return home
        return None

    def find(self, root: Path) -> Path:
        """The folder of the layout, else an error that says what is wrong with the root."""
        check_root(root)
        home = self.home(root)
        if home is None:
            raise FileNotFoundError(self._problem(root))
        return home

    def _lacking(self, home: Path) -> list[str]:
        return [
            part
            for part in self.parts
            if not any((home / either).exists() for either in part.split("|"))
        ]

    def near_miss(self, root: Path) -> str | None:
        """What is missing, where a root holds a part of the dataset alone."""
        homes = [root / home for home in self.homes if home != "."]
        if self.home(root) is None and any(len(self._lacking(h)) < len(self.parts) for h in homes):
            return self._problem(root)
        return None

    def _problem(self, root: Path) -> str:
        here = root.resolve()
        for parent in here.parents[:_LEVELS]:
            home = self.home(parent)
            if home is not None and (here.is_relative_to(home) or home.is_relative_to(here)):
                return f"root {str(root)!r} is inside the dataset; give {str(parent)!r} instead"
        for child in sorted(path for path in root.iterdir() if path.is_dir()):
            if self.home(child) is not None:
                return f"the dataset is one level deeper than {str(root)!r}; give {str(child)!r}"
        for folder in (root / home for home in self.homes):
            lacking = self._lacking(folder)
            if (folder != root and folder.is_dir()) or len(lacking) < len(self.parts):
                missing = ", ".join(lacking).replace("|", " or ")
                hint = f"; {self.hint}" if self.hint else ""
                return f"no {missing} below {str(folder)!r}; found: {_contents(folder)}{hint}"
        return f"no {self.wanted} below {str(root)!r}; found: {_contents(root)}"


_VOC, _ADE = "VOCdevkit/VOC", "ADEChallengeData2016"
_SPLITS, _ALL, _LAB = ("val", "train"), ("all",), ("test", "val")

DATASETS: dict[str, Layout] = {
    "voc": Layout(
        open_voc, (*_SPLITS, "trainval"), (f"{_VOC}2012",), ("JPEGImages", "ImageSets/Segmentation")
    ),
    "context": Layout(
        open_context, _SPLITS, (f"{_VOC}2010",), ("JPEGImages", "SegmentationClassContext")
    ),
    "coco": Layout(
        open_coco,
        _SPLITS,
        ("coco_stuff164k", "coco"),
        ("images|val2017|train2017", "annotations"),
    ),
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
    return replace(dataset, keys=dataset.keys[:limit])


def find_datasets(root: Path) -> list[str]:
    """The names of the datasets that stand below this root."""
    check_root(root)
    return [name for name, layout in DATASETS.items() if layout.home(root) is not None]


def near_misses(root: Path) -> dict[str, str]:
    """Of datasets of which a root holds a part alone, what is missing."""
    said = {name: layout.near_miss(root) for name, layout in DATASETS.items() if layout.homes}
    return {name: problem for name, problem in said.items() if problem}


def _contents(folder: Path) -> str:
    """The first entries of a folder, in words."""
    return shortened(sorted(os.listdir(folder)), 8) or "nothing"


def check_root(root: Path) -> None:
    """Raise a FileNotFoundError unless the root is a folder."""
    if not root.is_dir():
        what = "a file" if root.exists() else "missing"
        raise FileNotFoundError(f"root {str(root)!r} is {what}; name a folder")
