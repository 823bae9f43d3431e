"""Datasets in files: which they list, and masks as labels."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.bench.datasets.sample import Dataset, Sample, class_list
from pixalign.bench.metrics import IGNORE
from pixalign.core.values import Size
from pixalign.pictures.reading import read_image

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_NAMED = 3  # how many of several problems are named
_ORIENTATION = 0x0112  # the tag of a picture that is stored turned


def shortened(items: Sequence[str], named: int = _NAMED) -> str:
    """ "a, b, c and 5 more"."""
    more = f" and {len(items) - named} more" if len(items) > named else ""
    return ", ".join(items[:named]) + more


def files_in(folder: Path, endings: str | tuple[str, ...]) -> dict[str, Path]:
    """The files of a folder that end so, by their names without the ending, sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(f"folder {str(folder)!r} is missing")
    files: dict[str, Path] = {}
    for name in sorted(os.listdir(folder)):
        for ending in (endings,) if isinstance(endings, str) else endings:
            if name.lower().endswith(ending.lower()) and not name.startswith("."):
                path = folder / name
                other = files.setdefault(name[: -len(ending)], path)
                if other != path:
                    raise ValueError(
                        f"{str(folder)!r} holds both {other.name} and {name}; allowed: one "
                        "file of each name"
                    )
    return dict(sorted(files.items()))


def read_list(path: Path) -> tuple[str, ...]:
    """The names in a list of images: each line's first word, without folders and ending."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    names = [Path(line.split()[0]).stem for line in lines if line.strip()]
    doubles = [name for name, count in Counter(names).items() if count > 1]
    if not names or doubles:
        what = f"names {shortened(doubles)} twice" if doubles else "is empty"
        raise ValueError(f"list {str(path)!r} {what}; allowed: one or more different names")
    return tuple(names)


def require(what: str, keys: Iterable[str], found: Mapping[str, Path], folder: Path) -> None:
    """Raise a FileNotFoundError that names the first keys without a file."""
    keys = list(keys)
    missing = [key for key in keys if key not in found]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(keys)} {what} are missing in {str(folder)!r}: "
            f"{shortened(missing)}"
        )


@contextmanager
def _opened(path: Path, what: str = "") -> Iterator[Image.Image]:
    """A file as Pillow opens it; damage is an error that names the file."""
    try:
        with Image.open(path) as image:
            yield image
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{what}{str(path)!r} is damaged or no image: {error}") from error


def open_mask(path: Path) -> Image.Image:
    """A decoded mask file, in its own mode."""
    with _opened(path, "mask ") as image:
        image.load()
        return image


def indices(image: Image.Image, path: Path) -> np.ndarray:
    """int64 [H, W]: the values of a grey mask, the palette's indices of a coloured one."""
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise ValueError(
            f"mask {str(path)!r} has mode {image.mode}; allowed: palette (P) or grey (L, 1, 16 bit)"
        )
    return np.asarray(image).astype(np.int64)


def checked(labels: np.ndarray, path: Path, classes: int, ignore: bool) -> np.ndarray:
    """Integers [H, W] as uint8, once all are 0 to ``classes`` (or 255, where those are ignored)."""
    odd = (labels < 0) | (labels > classes)
    if ignore:
        odd &= labels != IGNORE
    if odd.any():
        also = f" and {IGNORE}" if ignore else ""
        value = int(labels[odd][0])
        raise ValueError(f"mask {str(path)!r} has label {value}; allowed: 0 to {classes}{also}")
    return labels.astype(np.uint8)


def read_labels(path: Path, classes: int, ignore: bool = False) -> np.ndarray:
    """uint8 [H, W] of a mask file whose values are the labels."""
    return checked(indices(open_mask(path), path), path, classes, ignore)


def picture_size(path: Path) -> Size:
    """The upright (height, width) that a picture's header tells."""
    with _opened(path) as image:
        width, height = image.size
        turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (width, height) if turned else (height, width)


@dataclass(frozen=True, eq=False, kw_only=True)
class FileDataset(Dataset):
    """Pictures in files; ``images`` and ``phrases`` by key, also of more keys than there are."""

    name: str
    split: str
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    masks_from: str
    images: Mapping[str, Path]
    phrases: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def __getitem__(self, index: int) -> Sample:
        key = self.keys[index]
        image = read_image(self.images[key])
        truth = self.truth(index)
        self.compare(index, (image.height, image.width), truth)
        return Sample(key, image, truth, self.phrases.get(key, {}))

    def size(self, index: int) -> Size:
        """The picture's (height, width), from its header."""
        return picture_size(self.images[self.keys[index]])

    def source(self, index: int) -> str:
        """The picture's file."""
        return str(self.images[self.keys[index]])

    def mark(self, index: int) -> str:
        """The key, the picture's size in bytes and its phrases, as in any copy of the dataset."""
        key = self.keys[index]
        phrases = sorted(self.phrases.get(key, {}).items())
        return f"{key} {self.images[key].stat().st_size} {phrases}"


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskDataset(FileDataset):
    """Pictures with a mask file each, which ``read`` turns into labels."""

    masks: Mapping[str, Path]
    read: Callable[[Path], np.ndarray]

    def truth(self, index: int) -> np.ndarray:
        """uint8 [H, W], from the mask file."""
        return self.read(self.masks[self.keys[index]])

    def mark(self, index: int) -> str:
        """The mask's size in bytes, too."""
        return f"{super().mark(index)} {self.masks[self.keys[index]].stat().st_size}"


def open_masks(
    name: str,
    split: str,
    images: Path,
    masks: Path,
    *,
    endings: tuple[str | tuple[str, ...], str] = (".jpg", ".png"),
    keys: Sequence[str] | None = None,
    classes: Sequence[str] = (),
    ignore: bool = False,
    read: Callable[[Path], np.ndarray] | None = None,
) -> MaskDataset:
    """The pictures of a folder with the masks of another; without ``keys``, all files are paired.

    Without ``classes``, they are those of the dataset's list; without ``read``, a mask's values are
    the labels, 255 among them where ``ignore`` says so.
    """
    pictures, truths = files_in(images, endings[0]), files_in(masks, endings[1])
    names = sorted({*pictures, *truths}) if keys is None else keys
    if not names:
        raise FileNotFoundError(f"there is no image in {str(images)!r}")
    require("images", names, pictures, images)
    require("masks", names, truths, masks)
    known = tuple(classes) or class_list(name)
    return MaskDataset(
        name=name,
        split=split,
        classes=known,
        keys=tuple(names),
        masks_from=masks.name,
        images=pictures,
        masks=truths,
        read=read or partial(read_labels, classes=len(known), ignore=ignore),
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
