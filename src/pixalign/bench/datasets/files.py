"""Datasets in files: which they list, and masks as labels."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.bench.datasets.sample import NAMED, Dataset, Sample, class_list
from pixalign.bench.metrics import IGNORE
from pixalign.core.files import read_text
from pixalign.pictures.reading import DAMAGED, open_image, read_image, upright_size

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


def shortened(items: Sequence[str], named: int = NAMED) -> str:
    """ "a, b, c and 5 more"."""
    more = f" and {len(items) - named} more" if len(items) > named else ""
    return ", ".join(items[:named]) + more


def files_in(folder: Path, *endings: str) -> dict[str, Path]:
    """The files of a folder that end so, by their names without the ending, sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(f"folder {str(folder)!r} is missing")
    files: dict[str, Path] = {}
    for name in sorted(os.listdir(folder)):
        ending = next((end for end in endings if name.lower().endswith(end.lower())), None)
        if ending is not None and not name.startswith("."):
            other = files.setdefault(name[: -len(ending)], folder / name).name
            if other != name:
                raise ValueError(
                    f"{str(folder)!r} holds both {other} and {name}; allowed: one file of each name"
                )
    return dict(sorted(files.items()))


def read_list(path: Path) -> tuple[str, ...]:
    """The names in a list of images: each line's first word, without folders and ending."""
    if not path.is_file():
        raise FileNotFoundError(f"list {str(path)!r} is missing")
    lines = read_text(path).splitlines()
    names = [Path(line.split()[0]).stem for line in lines if line.strip()]
    doubles = [name for name, count in Counter(names).items() if count > 1]
    if not names or doubles:
        what = f"names {shortened(doubles)} twice" if doubles else "is empty"
        raise ValueError(f"list {str(path)!r} {what}; allowed: one or more different names")
    return tuple(names)


def require(what: str, keys: Sequence[str], there: Mapping[str, Any], folder: Path) -> None:
    """Raise a FileNotFoundError that names the first keys without a file."""
    missing = [key for key in keys if key not in there]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(keys)} {what} are missing in {str(folder)!r}: "
            f"{shortened(missing)}"
        )


def open_mask(path: Path) -> Image.Image:
    """A decoded mask file, in its own mode."""
    try:
        with open_image(path) as image:
            image.load()
            return image
    except (FileNotFoundError, PermissionError):
        raise
    except DAMAGED as error:
        raise ValueError(f"mask {str(path)!r} is damaged or no image: {error}") from error


def indices(image: Image.Image, path: Path) -> np.ndarray:
    """int64 [H, W]: the values of a grey mask, the palette's indices of a coloured one."""
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise ValueError(
            f"mask {str(path)!r} has mode {image.mode}; allowed: palette (P) or grey (L, 1, 16 bit)"
        )
    return np.asarray(image).astype(np.int64)


def checked(labels: np.ndarray, path: Path, classes: int, ignore: bool) -> np.ndarray:
    """Integers [H, W] as uint8, once all are 0 to ``classes`` (or 255, where those are ignored)."""
    odd = labels[(labels < 0) | (labels > classes) & ~(ignore & (labels == IGNORE))]
    if odd.size:
        allowed = f"0 to {classes}" + f" and {IGNORE}" * ignore
        raise ValueError(f"mask {str(path)!r} has label {odd[0]}; allowed: {allowed}")
    return labels.astype(np.uint8)


def read_labels(path: Path, classes: int, ignore: bool = False) -> np.ndarray:
    """uint8 [H, W] of a mask file whose values are the labels."""
    return checked(indices(open_mask(path), path), path, classes, ignore)


@dataclass(frozen=True, eq=False, kw_only=True)
class FileDataset(Dataset):
    """Pictures in files, and what ``read`` turns into their labels: mask files, or outlines.

    ``images``, ``masks`` and ``phrases`` are by key, also of more keys than there are. ``unknown``
    are the names of pictures that no list knows and no mask belongs to.
    """

    images: Mapping[str, Path]
    masks: Mapping[str, Any]
    read: Callable[[Any], np.ndarray]
    unknown: tuple[str, ...] = ()
    phrases: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Sample:
        key = self.keys[index]
        image = read_image(self.images[key])
        return Sample(key, image, self.truth(index), self.phrases.get(key, {}))

    def truth(self, index: int) -> np.ndarray:
        """uint8 [H, W], of the size that the picture's header tells."""
        path = self.images[self.keys[index]]
        height, width = upright_size(path)
        truth = self.read(self.masks[self.keys[index]])
        if truth.shape != (height, width):
            rows, columns = truth.shape
            raise ValueError(
                f"{str(path)!r} is {width}x{height} pixels upright, its mask is {columns}x{rows}; "
                "allowed: the same size"
            )
        return truth

    def mark(self, index: int) -> str:
        """The key, the picture's size in bytes, its phrases, and the size of its mask or what is
        outlined: as in any copy of the dataset."""
        key = self.keys[index]
        mask, phrases = self.masks[key], sorted(self.phrases.get(key, {}).items())
        truth = mask.stat().st_size if isinstance(mask, Path) else mask
        return f"{key} {self.images[key].stat().st_size} {phrases} {truth}"


def open_masks(
    name: str,
    split: str,
    images: Path,
    masks: Path,
    *,
    endings: tuple[str, ...] = (".jpg", ".jpeg"),
    mask_ending: str = ".png",
    outlines: Mapping[str, Any] | None = None,
    keys: Sequence[str] | None = None,
    classes: tuple[str, ...] = (),
    read: Callable[[Any], np.ndarray] | None = None,
    masks_from: str = "",
) -> FileDataset:
    """The pictures of a folder with the masks of another, or the ``outlines`` of a file.

    Without ``keys``, all files are paired; without ``classes``, they are those of the dataset's
    list; without ``read``, a mask's values are the labels.
    """
    pictures = files_in(images, *endings)
    truths = files_in(masks, mask_ending) if outlines is None else outlines
    names = sorted({*pictures, *truths}) if keys is None else keys
    if not names:
        raise FileNotFoundError(f"there is no image in {str(images)!r}")
    require("images", names, pictures, images)
    require("masks", names, truths, masks)
    known = classes or class_list(name)
    listed = keys is None or outlines is not None
    return FileDataset(
        unknown=tuple(sorted({*pictures} - {*names})) if listed else (),
        name=name,
        split=split,
        classes=known,
        keys=tuple(names),
        masks_from=masks_from or masks.name,
        images=pictures,
        masks=truths,
        read=read or partial(read_labels, classes=len(known)),
    )


def bench_module(name: str, path: Path) -> Any:
    """A module of the extra ``bench``, imported only where a file needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ValueError(
            f'{str(path)!r} needs {package}; install it: pip install "pixalign[bench]"'
        ) from error
