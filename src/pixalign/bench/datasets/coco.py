"""COCO 2017, the 80 things; everything else is background.

Masks are ``annotations/val2017/*_labelTrainIds.png``, else COCO-Stuff's own, ``*.png`` there; where
there are none, outlines: ``annotations/instances_val2017.json``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pixalign.bench.datasets.files import (
    FileDataset,
    bench_module,
    files_in,
    indices,
    open_mask,
    open_masks,
)
from pixalign.bench.datasets.sample import class_list
from pixalign.bench.metrics import IGNORE
from pixalign.core.checks import brief
from pixalign.core.files import read_json
from pixalign.core.values import Size
from pixalign.pictures.reading import MAX_PIXELS

SUFFIX = "_labelTrainIds.png"
# Between 1 and 90, the numbers that no category has.
GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
CATEGORIES = tuple(number for number in range(1, 91) if number not in GAPS)
# Values of masks: ids for training, and COCO-Stuff's own, which are a category's number less 1.
TRAIN_IDS = 171
_STUFF = {*(number - 1 for number in CATEGORIES), *range(91, 182)}


def open_coco(home: Path, split: str) -> FileDataset:
    """All pictures of images/val2017 or val2017, or of train2017, also those without any thing."""
    folders = home / "images" / f"{split}2017", home / f"{split}2017"
    images = next((folder for folder in folders if folder.is_dir()), folders[0])
    masks = home / "annotations" / f"{split}2017"
    instances = home / "annotations" / f"instances_{split}2017.json"
    options: dict[str, Any]
    for ending, read in ((SUFFIX, read_train_ids), (".png", read_stuff)):
        if masks.is_dir() and files_in(masks, ending):
            options = {"mask_ending": ending, "masks_from": f"*{ending}", "read": read}
            return open_masks("coco", split, images, masks, **options)
    if not instances.is_file():
        raise FileNotFoundError(
            f"there is neither a *{SUFFIX} in {str(masks)!r} nor {str(instances)!r}"
        )
    outlines = read_instances(instances)
    options = {"outlines": outlines, "keys": sorted(outlines), "read": Outlines.labels}
    return open_masks("coco", split, images, instances, **options)


def read_train_ids(path: Path) -> np.ndarray:
    """uint8 [H, W]: 0 to 79 are things; 80 to 170 and 255 are background."""
    values = indices(open_mask(path), path)
    _check_ids(values, path, range(TRAIN_IDS), "training knows; COCO-Stuff's own masks are *.png")
    things = len(class_list("coco"))
    return np.where(values < things, values + 1, 0).astype(np.uint8)


def read_stuff(path: Path) -> np.ndarray:
    """uint8 [H, W] of COCO-Stuff's own masks: a thing's number less 1; stuff is background."""
    values = indices(open_mask(path), path)
    _check_ids(values, path, _STUFF, f"COCO-Stuff has; ids for training are *{SUFFIX}")
    label = np.zeros(IGNORE + 1, dtype=np.uint8)
    for index, number in enumerate(CATEGORIES):
        label[number - 1] = index + 1
    labels: np.ndarray = label[values]
    return labels


def _check_ids(values: np.ndarray, path: Path, known: Collection[int], whose: str) -> None:
    odd = sorted(set(np.unique(values).tolist()) - {IGNORE} - set(known))
    if odd:
        raise ValueError(f"mask {str(path)!r} has the id {odd[0]}; allowed: those that {whose}")


@dataclass(frozen=True)
class Outlines:
    """What is outlined in one picture of a JSON file: objects, and crowds of objects.

    ``regions`` are (number, label, outline); an outline is as COCO writes it: polygons
    [[x, y, ...], ...] or run lengths {"size", "counts"}.
    """

    path: Path
    size: Size
    regions: tuple[tuple[int, int, Any], ...]

    def __str__(self) -> str:
        return str([(number, label) for number, label, _ in self.regions])

    def labels(self) -> np.ndarray:
        """uint8 [H, W]: smaller regions lie over larger ones; crowds are of their class too."""
        painted = np.zeros(self.size, dtype=np.uint8)
        areas = [(self._pixels(number, o), number, label) for number, label, o in self.regions]
        for pixels, _, label in sorted(areas, key=lambda area: (-int(area[0].sum()), area[1])):
            painted[pixels] = label
        return painted

    def _pixels(self, number: int, outline: Any) -> np.ndarray:
        """bool [H, W]: where a region is."""
        try:
            return region_pixels(outline, self.size)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            name = f"annotation {number} in {str(self.path)!r}"
            raise ValueError(f"{name} has no outline that can be read: {error}") from error


def region_pixels(outline: Any, size: Size) -> np.ndarray:
    """bool [H, W]: where an outline, as COCO writes it, is; checked before anything is painted."""
    height, width = size
    if isinstance(outline, Mapping):
        if list(outline["size"]) != [height, width]:
            raise ValueError(f"it is of {outline['size']} pixels; allowed: {[height, width]}")
        counts = outline["counts"]
        runs = unpacked(counts) if isinstance(counts, str | bytes) else counts
        if not all(type(run) is int and run >= 0 for run in runs) or sum(runs) != height * width:
            raise ValueError(f"its runs are no {height * width} pixels in all")
        inside = np.arange(len(runs)) % 2 == 1
        return np.repeat(inside, runs).reshape(width, height).T
    if not isinstance(outline, list):
        raise ValueError(f"it is {brief(outline)}; allowed: polygons, or run lengths")
    for polygon in outline:
        points = np.asarray(polygon, dtype=np.float64)
        near = np.abs(points) <= 2 * max(size)
        if points.ndim != 1 or len(points) < 6 or len(points) % 2 or not near.all():
            raise ValueError(
                f"it has the polygon {brief(polygon)}; allowed: x, y, ... of 3 points "
                "or more, about the picture"
            )
    coco = bench_module("pycocotools.mask", Path("outlines"))
    if not outline:
        return np.zeros(size, dtype=bool)
    pixels: np.ndarray = coco.decode(coco.merge(coco.frPyObjects(outline, height, width))) > 0
    return pixels


def unpacked(text: str | bytes) -> list[int]:
    """The run lengths that COCO packs into letters: six bits a letter, the lowest first.

    Five of them are digits, the sixth says that more follow; from the fourth number on they are
    differences to the one before the last.
    """
    codes = list(text.encode() if isinstance(text, str) else text)
    runs: list[int] = []
    value = shift = 0
    for code in codes:
        digit = code - 48
        if not 0 <= digit < 64 or shift > 60:
            raise ValueError(f"its runs hold {chr(code)!r}, which is none of the letters for them")
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:
            continue
        if digit & 16:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("its runs end in the middle of a number")
    return runs


def _size(image: Mapping[str, Any]) -> Size:
    height, width = int(image["height"]), int(image["width"])
    if min(height, width) < 1 or height * width > MAX_PIXELS:
        raise ValueError(f"image {brief(image)} is of {width}x{height} pixels")
    return height, width


def read_instances(path: Path) -> dict[str, Outlines]:
    """By the name of each picture, what is outlined in it."""
    bench_module("pycocotools.coco", path)
    label = {number: 1 + index for index, number in enumerate(CATEGORIES)}
    regions: defaultdict[int, list[tuple[int, int, Any]]] = defaultdict(list)
    try:
        content = read_json(path)
        numbers = tuple(sorted(category["id"] for category in content["categories"]))
        if numbers != CATEGORIES:  # by whose order labels are known
            odd = sorted(set(numbers) ^ set(CATEGORIES))
            raise ValueError(
                f"there are {len(numbers)} categories; allowed: COCO's {len(CATEGORIES)}, which "
                f"differ by the numbers {odd[:5]}"
            )
        for each in content["annotations"]:
            region = (int(each["id"]), label[each["category_id"]], each["segmentation"])
            regions[each["image_id"]].append(region)
        return {
            Path(image["file_name"]).stem: Outlines(path, _size(image), tuple(regions[image["id"]]))
            for image in content["images"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{str(path)!r} is no file of COCO instances: {type(error).__name__}: {error}"
        ) from error
