"""What every dataset gives: a picture, the class of each pixel, and sometimes words."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from pixalign.bench.metrics import IGNORE
from pixalign.core.progress import Progress

CLASSES = Path(__file__).parent / "classes"
NAMED = 3  # how many of several problems are named


@cache
def class_list(name: str) -> tuple[str, ...]:
    """The prompt names of a dataset's classes, in the order of its labels."""
    return tuple((CLASSES / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def class_lists() -> tuple[str, ...]:
    """The datasets whose classes come with the package."""
    return tuple(sorted(path.stem for path in CLASSES.glob("*.txt")))


@dataclass(frozen=True, eq=False)
class Sample:
    """One picture and its truth.

    ``truth`` uint8 [H, W] is 0 on the background, 1 + c on class c, 255 where nothing is counted.
    ``phrases`` are the words of some classes; the others go by their names.
    """

    key: str  # unique in the dataset and the same whatever the limit
    image: Image.Image  # RGB
    truth: np.ndarray
    phrases: Mapping[int, str]
    group: str = ""  # what was changed and how far: "size=0.5"
    target: int | None = None  # ... and the class it was changed for
    visible: Mapping[int, float] | None = None  # the share of each class that nothing covers

    @property
    def present(self) -> tuple[int, ...]:
        """The classes with a pixel, ascending."""
        return tuple(np.flatnonzero(label_pixels(self.truth)[1:IGNORE]).tolist())


def label_pixels(truth: np.ndarray) -> np.ndarray:
    """int64 [256]: how many pixels of a truth uint8 [H, W] have each label."""
    return np.bincount(truth.ravel(), minlength=IGNORE + 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(ABC):
    """Samples in a fixed order; nothing is read before it is asked for."""

    name: str
    split: str
    classes: tuple[str, ...]  # prompt names
    keys: tuple[str, ...]
    masks_from: str  # which masks these are, where a layout knows several

    def __len__(self) -> int:
        return len(self.keys)

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    @abstractmethod
    def truth(self, index: int) -> np.ndarray:
        """uint8 [H, W] as in `Sample`, without decoding the picture, whose size it has."""

    def mark(self, index: int) -> str:
        """What tells a sample from another dataset's of the same key."""
        return self.keys[index]

    def first(self, count: int) -> Sequence[int]:
        """Where the samples stand that a lower limit, which gives so many, would have."""
        return range(count)

    def digest(self, count: int | None = None) -> str:
        """SHA-256 in hexadecimal of all samples' marks, or of those of `first`: another for other
        pictures."""
        indices = range(len(self)) if count is None else self.first(count)
        marks = "".join(f"{self.mark(index)}\n" for index in indices)
        return hashlib.sha256(marks.encode()).hexdigest()

    def counts(self) -> Mapping[str, float] | None:
        """How often training showed each class name, where that is known."""
        return None


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
    unknown: tuple[str, ...]  # pictures that belong to no mask or list
    problems: tuple[str, ...]  # of images, which are in none of the other numbers


def check(dataset: Dataset, progress: bool = False, decode: bool = False) -> Check:
    """Look at every mask and every picture's header before hours are spent on them.

    With ``decode`` pictures are read whole, which finds those that are cut short.
    """
    problems: list[str] = []
    shapes, empty = [], 0
    pixels, images = np.zeros((2, IGNORE + 1), dtype=np.int64)  # of each label
    with Progress(len(dataset), f"check {dataset.name}", progress, "image") as bar:
        for index in range(len(dataset)):
            bar.advance(1)
            try:
                truth = dataset[index].truth if decode else dataset.truth(index)
            except (ValueError, OSError) as error:
                problems.append(str(error))
                continue
            shapes.append(truth.shape)
            counts = label_pixels(truth)
            pixels += counts
            images += counts > 0
            empty += not counts[1:IGNORE].any()
    heights, widths = zip(*shapes, strict=True) if shapes else ((0,), (0,))
    shares = (pixels / max(1, pixels.sum())).tolist()
    return Check(
        name=dataset.name,
        split=dataset.split,
        images=len(dataset),
        heights=(min(heights), max(heights)),
        widths=(min(widths), max(widths)),
        ignored=shares[IGNORE],
        background=shares[0],
        images_per_class=dict(zip(dataset.classes, images[1:].tolist(), strict=False)),
        empty=empty,
        unknown=getattr(dataset, "unknown", ()),
        problems=tuple(problems),
    )
