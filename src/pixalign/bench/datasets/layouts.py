"""Where datasets stand below a root, and the layouts that a few lines describe."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pixalign.bench.datasets.files import (
    PICTURES,
    FileDataset,
    files_in,
    open_masks,
    read_labels,
    read_list,
    shortened,
)
from pixalign.bench.datasets.sample import Dataset

MOST = 253  # classes of an own folder
_LEVELS = 4  # how far above a root its dataset is looked for


@dataclass(frozen=True)
class Layout:
    """A dataset, in the first of ``homes`` below a root that holds all ``parts``.

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
        parts = ", ".join(self.parts)
        return " or ".join(parts if home == "." else home for home in self.homes)

    def home(self, root: Path) -> Path | None:
        """The folder of the layout, if it stands below this root."""
        homes = [root / home for home in self.homes]
        return next((home for home in homes if not self._lacking(home)), None)

    def find(self, root: Path) -> Path:
        """The folder of the layout, else an error that says what is wrong with the root."""
        check_root(root)
        home = self.home(root)
        if home is None:
            raise FileNotFoundError(self._problem(root))
        return home

    def _lacking(self, home: Path) -> list[str]:
        return [part for part in self.parts if not (home / part).exists()]

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
                missing, hint = ", ".join(lacking), f"; {self.hint}" if self.hint else ""
                return f"no {missing} below {str(folder)!r}; found: {_contents(folder)}{hint}"
        return f"no {self.wanted} below {str(root)!r}; found: {_contents(root)}"


def _contents(folder: Path) -> str:
    """The first entries of a folder, in words."""
    return shortened(sorted(os.listdir(folder)), 8) or "nothing"


def check_root(root: Path) -> None:
    """Raise a FileNotFoundError unless the root is a folder."""
    if not root.is_dir():
        what = "a file" if root.exists() else "missing"
        raise FileNotFoundError(f"root {str(root)!r} is {what}; name a folder")


def open_ade20k(home: Path, split: str) -> FileDataset:
    """ADE20K, all pictures of images/validation or images/training: 150 classes, 0 = other."""
    part = {"val": "validation", "train": "training"}[split]
    images, masks = home / "images" / part, home / "annotations" / part
    return open_masks("ade20k", split, images, masks, masks_from=f"annotations/{part}")


def open_context(home: Path, split: str) -> FileDataset:
    """PASCAL Context, ImageSets/SegmentationContext/SPLIT.txt: 59 classes, 0 = everything else.

    Where that list is absent, the mask files that VOC's own ImageSets/Main/SPLIT.txt names: masks
    come for train and val together.
    """
    masks = home / "SegmentationClassContext"
    own, main = (
        home / "ImageSets" / folder / f"{split}.txt" for folder in ("SegmentationContext", "Main")
    )
    if not own.is_file() and not main.is_file():
        raise FileNotFoundError(
            f"neither list {str(own)!r} nor {str(main)!r} is there; one must say which masks are "
            f"of {split}"
        )
    keys = read_list(own if own.is_file() else main)
    if not own.is_file():
        there = files_in(masks, ".png")
        keys = tuple(key for key in keys if key in there)
    if not keys:
        raise FileNotFoundError(f"there is no mask of {split} in {str(masks)!r}")
    return open_masks("context", split, home / "JPEGImages", masks, keys=keys)


def open_folder(home: Path, split: str) -> FileDataset:
    """Anyone's own pictures of any kind, and indexed PNG masks of the same names.

    Label i + 1 is line i of classes.txt; 255 is not counted.
    """
    classes, folders = read_classes(home / "classes.txt"), (home / "images", home / "masks")
    read = partial(read_labels, classes=len(classes), ignore=True)
    return open_masks("folder", split, *folders, endings=PICTURES, classes=classes, read=read)


def read_classes(path: Path) -> tuple[str, ...]:
    """One class a line; blank lines, doubles and more than 253 classes are refused."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    classes = tuple(" ".join(line.split()) for line in lines)
    folded = [name.casefold() for name in classes]
    for number, name in enumerate(classes, 1):
        if not name:
            raise ValueError(f"line {number} of {str(path)!r} is blank; allowed: a class a line")
        before = 1 + folded.index(name.casefold())
        if before < number:
            raise ValueError(
                f"line {number} of {str(path)!r} is {name!r}, like line {before}; "
                "allowed: different classes"
            )
    if not 1 <= len(classes) <= MOST:
        raise ValueError(f"{str(path)!r} has {len(classes)} classes; allowed: 1 to {MOST}")
    return classes
