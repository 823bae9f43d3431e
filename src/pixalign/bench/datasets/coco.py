"""COCO 2017: coco_stuff164k, the 80 things; everything else is background.

Masks are ``annotations/val2017/*_labelTrainIds.png`` or, where there are none,
``annotations/instances_val2017.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
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
from pixalign.core.values import Size

SUFFIX = "_labelTrainIds.png"
# Between 1 and 90, the numbers that no category has.
GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
CATEGORIES = tuple(number for number in range(1, 91) if number not in GAPS)


def open_coco(home: Path, split: str) -> FileDataset:
    """All pictures of images/val2017 or images/train2017, also those without any thing."""
    images, masks = home / "images" / f"{split}2017", home / "annotations" / f"{split}2017"
    instances = home / "annotations" / f"instances_{split}2017.json"
    options: dict[str, Any]
    if masks.is_dir() and files_in(masks, SUFFIX):
        options = {"mask_ending": SUFFIX, "masks_from": f"*{SUFFIX}", "read": read_train_ids}
        return open_masks("coco", split, images, masks, **options)
    if not instances.is_file():
        raise FileNotFoundError(
            f"there is neither a *{SUFFIX} in {str(masks)!r} nor {str(instances)!r}"
        )
    outlines = read_instances(instances)
    options = {"outlines": outlines, "keys": sorted(outlines), "read": Outlines.labels}
    return open_masks("coco", split, images, instances, **options)


def read_train_ids(path: Path) -> np.ndarray:
    """uint8 [H, W]: 0 to 79 are things; every other number is background."""
    values = indices(open_mask(path), path)
    things = len(class_list("coco"))
    return np.where((values >= 0) & (values < things), values + 1, 0).astype(np.uint8)


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
        coco = bench_module("pycocotools.coco", self.path).COCO()
        coco.imgs[0] = {"height": self.size[0], "width": self.size[1]}
        name = f"annotation {number} in {str(self.path)!r}"
        try:
            pixels: np.ndarray = coco.annToMask({"image_id": 0, "segmentation": outline}) > 0
        except Exception as error:
            raise ValueError(f"{name} has no outline that pycocotools can read: {error}") from error
        if pixels.shape != self.size:
            raise ValueError(
                f"{name} is of {pixels.shape} pixels; allowed: {self.size}, like its image"
            )
        return pixels


def read_instances(path: Path) -> dict[str, Outlines]:
    """By the name of each picture, what is outlined in it."""
    bench_module("pycocotools.coco", path)
    label = {number: 1 + index for index, number in enumerate(CATEGORIES)}
    regions: defaultdict[int, list[tuple[int, int, Any]]] = defaultdict(list)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
            Path(image["file_name"]).stem: Outlines(
                path, (int(image["height"]), int(image["width"])), tuple(regions[image["id"]])
            )
            for image in content["images"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is no file of COCO instances: {type(error).__name__}: {error}"
        ) from error
