"""Datasets with a mask file for each picture: PASCAL VOC and Context, ADE20K, own folders."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from pixalign.bench.datasets.files import (
    PICTURES,
    FileDataset,
    checked,
    files_in,
    indices,
    open_mask,
    open_masks,
    read_labels,
    read_list,
)
from pixalign.bench.datasets.sample import class_list
from pixalign.bench.metrics import IGNORE
from pixalign.core.files import read_text

MOST = 253  # classes of an own folder
VOC_MASKS = ("SegmentationClassAug", "SegmentationClass")  # the first that is there


def open_voc(home: Path, split: str) -> FileDataset:
    """PASCAL VOC 2012, ImageSets/Segmentation/SPLIT.txt: 20 classes, 255 not counted."""
    keys = read_list(home / "ImageSets" / "Segmentation" / f"{split}.txt")
    folders = [home / name for name in VOC_MASKS if (home / name).is_dir()]
    if not folders:
        raise FileNotFoundError(f"no {' or '.join(VOC_MASKS)} below {str(home)!r}")
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
    masks, lists = home / "SegmentationClassContext", home / "ImageSets"
    own, main = lists / "SegmentationContext" / f"{split}.txt", lists / "Main" / f"{split}.txt"
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
    lines = read_text(path).splitlines()
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
