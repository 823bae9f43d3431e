"""PASCAL VOC 2012: VOCdevkit/VOC2012, 20 classes, 255 not counted."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from pixalign.bench.datasets.files import (
    FileDataset,
    checked,
    indices,
    open_mask,
    open_masks,
    read_list,
)
from pixalign.bench.datasets.sample import class_list
from pixalign.bench.metrics import IGNORE

MASKS = ("SegmentationClassAug", "SegmentationClass")  # the first that is there


def open_voc(home: Path, split: str) -> FileDataset:
    """The images of ImageSets/Segmentation/SPLIT.txt."""
    keys = read_list(home / "ImageSets" / "Segmentation" / f"{split}.txt")
    folders = [home / name for name in MASKS if (home / name).is_dir()]
    if not folders:
        raise FileNotFoundError(f"no {' or '.join(MASKS)} below {str(home)!r}")
    return open_masks("voc", split, home / "JPEGImages", folders[0], keys=keys, read=read_voc)


def read_voc(path: Path) -> np.ndarray:
    """uint8 [H, W]: a palette's indices, grey values, or VOC's published colours as labels."""
    image = open_mask(path)
    count = len(class_list("voc"))
    if image.mode in ("RGB", "RGBA"):
        return _by_colour(np.asarray(image.convert("RGB")), path, count)
    labels = checked(indices(image, path), path, count, ignore=True)
    if image.mode == "P":
        _check_palette(image, labels, path)
    return labels


@cache
def colour_map() -> dict[tuple[int, ...], int]:
    """VOC's published colours: a label's bits, three at a time, are spread over R, G and B."""
    labels = np.arange(IGNORE + 1)
    channels = [
        sum((labels >> (3 * place + channel) & 1) << (7 - place) for place in range(8))
        for channel in range(3)
    ]
    return {tuple(colour): label for label, colour in enumerate(np.stack(channels, 1).tolist())}


def _by_colour(pixels: np.ndarray, path: Path, count: int) -> np.ndarray:
    codes, places = np.unique(pixels @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True)
    labels = []
    for code in codes.tolist():
        colour = (code >> 16, code >> 8 & 255, code & 255)
        label = colour_map().get(colour, -1)
        if not (0 <= label <= count or label == IGNORE):
            raise ValueError(
                f"mask {str(path)!r} has the colour {colour}; allowed: the {count + 2} colours of "
                "VOC's map, or a palette or grey file of labels"
            )
        labels.append(label)
    return np.array(labels, dtype=np.uint8)[places].reshape(pixels.shape[:2])


def _check_palette(image: Image.Image, labels: np.ndarray, path: Path) -> None:
    """A palette of VOC's colours in another order tells that a program has renumbered the file."""
    palette = image.getpalette() or []
    used = [label for label in np.unique(labels).tolist() if label < len(palette) // 3]
    meant = [colour_map().get(tuple(palette[3 * label : 3 * label + 3])) for label in used]
    if None not in meant and meant != used:
        raise ValueError(
            f"mask {str(path)!r} has VOC's colours of the labels {meant} at the indices {used}; "
            "allowed: an index that is the label"
        )
