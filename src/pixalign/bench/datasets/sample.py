"""What every dataset gives: a picture, the class of each pixel, and sometimes words."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from pixalign.bench.metrics import IGNORE
from pixalign.core.values import Size

CLASSES = Path(__file__).parent / "classes"


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
        return present_in(self.truth)


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
        """uint8 [H, W] as in `Sample`, without decoding the picture."""

    @abstractmethod
    def size(self, index: int) -> Size:
        """The picture's (height, width), without decoding it."""

    def source(self, index: int) -> str:
        """Where the picture comes from, for messages."""
        return self.keys[index]

    def mark(self, index: int) -> str:
        """What tells a sample from another dataset's of the same key."""
        return self.keys[index]

    def digest(self) -> str:
        """SHA-256 in hexadecimal of all samples' marks: another for other pictures."""
        found = hashlib.sha256()
        for index in range(len(self)):
            found.update(self.mark(index).encode() + b"\n")
        return found.hexdigest()

    def counts(self) -> Mapping[str, float] | None:
        """How often training showed each class name, where that is known."""
        return None

    def compare(self, index: int, size: Size, truth: np.ndarray) -> None:
        """Raise a ValueError unless picture and truth have the same (height, width)."""
        if truth.shape != size:
            (height, width), (rows, columns) = size, truth.shape
            raise ValueError(
                f"{self.source(index)!r} is {width}x{height} pixels upright, its mask is "
                f"{columns}x{rows}; allowed: the same size"
            )


def present_in(truth: np.ndarray) -> tuple[int, ...]:
    """The classes with a pixel in a truth uint8 [H, W], ascending."""
    pixels = np.bincount(truth.ravel(), minlength=IGNORE + 1)
    return tuple(int(label) - 1 for label in np.flatnonzero(pixels[:IGNORE]) if label)
