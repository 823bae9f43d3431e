"""COCO 2017: coco_stuff164k, the 80 things; everything else is background.

Masks are ``annotations/val2017/*_labelTrainIds.png`` or, where there are none,
``annotations/instances_val2017.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    require,
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
    pictures = files_in(images, ".jpg")
    if masks.is_dir() and files_in(masks, SUFFIX):
        endings = (".jpg", SUFFIX)
        dataset = open_masks("coco", split, images, masks, endings=endings, read=read_train_ids)
        return replace(dataset, masks_from=f"*{SUFFIX}")
    if not instances.is_file():
        raise FileNotFoundError(
            f"there is neither a *{SUFFIX} in {str(masks)!r} nor {str(instances)!r}"
        )
    return _open_instances(instances, split, pictures, images)


def read_train_ids(path: Path) -> np.ndarray:
    """uint8 [H, W]: 0 to 79 are things; every other number is background."""
    values = indices(open_mask(path), path)
    things = len(class_list("coco"))
    return np.where((values >= 0) & (values < things), values + 1, 0).astype(np.uint8)


@dataclass(frozen=True)
class Region:
    """One annotated object, or a crowd of objects: its label and its outline as COCO writes it."""

    label: int
    outline: Any  # polygons [[x, y, ...], ...] or run lengths {"size", "counts"}
    number: int


@dataclass(frozen=True, eq=False, kw_only=True)
class InstanceDataset(FileDataset):
    """Pictures whose things are outlined in a JSON file; ``regions`` and ``sizes`` by key."""

    path: Path
    regions: Mapping[str, tuple[Region, ...]]
    sizes: Mapping[str, Size]

    def truth(self, index: int) -> np.ndarray:
        """uint8 [H, W]: smaller regions lie over larger ones; crowds are of their class too."""
        key = self.keys[index]
        size = self.sizes[key]
        painted = np.zeros(size, dtype=np.uint8)
        areas = [(region, self._pixels(region, size)) for region in self.regions[key]]
        for region, pixels in sorted(areas, key=lambda a: (-int(a[1].sum()), a[0].number)):
            painted[pixels] = region.label
        return painted

    def mark(self, index: int) -> str:
        """What is outlined, too."""
        regions = self.regions[self.keys[index]]
        return f"{super().mark(index)} {[(region.number, region.label) for region in regions]}"

    def _pixels(self, region: Region, size: Size) -> np.ndarray:
        """bool [H, W]: where the region is."""
        masks = bench_module("pycocotools.mask", self.path)
        outline, (height, width) = region.outline, size
        try:
            if isinstance(outline, list):
                runs = masks.merge(masks.frPyObjects(outline, height, width))
            elif isinstance(outline["counts"], list):
                runs = masks.frPyObjects(outline, height, width)
            else:
                runs = outline
            pixels: np.ndarray = masks.decode(runs).astype(bool)
        except Exception as error:
            raise ValueError(
                f"annotation {region.number} in {str(self.path)!r} has no outline that pycocotools "
                f"can read: {error}"
            ) from error
        if pixels.shape != size:
            raise ValueError(
                f"annotation {region.number} in {str(self.path)!r} is of {pixels.shape} pixels; "
                f"allowed: {size}, like its image"
            )
        return pixels


def _open_instances(
    path: Path, split: str, pictures: Mapping[str, Path], folder: Path
) -> InstanceDataset:
    bench_module("pycocotools.mask", path)
    label = {number: 1 + index for index, number in enumerate(CATEGORIES)}
    outlined: defaultdict[int, list[Region]] = defaultdict(list)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _check_categories(sorted(category["id"] for category in content["categories"]))
        images = {Path(image["file_name"]).stem: image for image in content["images"]}
        sizes = {key: (int(image["height"]), int(image["width"])) for key, image in images.items()}
        for each in content["annotations"]:
            region = Region(label[each["category_id"]], each["segmentation"], int(each["id"]))
            outlined[each["image_id"]].append(region)
        regions = {key: tuple(outlined[image["id"]]) for key, image in images.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is no file of COCO instances: {type(error).__name__}: {error}"
        ) from error
    keys = tuple(sorted(images))
    require("images", keys, pictures, folder)
    return InstanceDataset(
        name="coco",
        split=split,
        classes=class_list("coco"),
        keys=keys,
        masks_from=path.name,
        images=pictures,
        path=path,
        regions=regions,
        sizes=sizes,
    )


def _check_categories(numbers: Sequence[int]) -> None:
    """Raise a ValueError unless these are COCO's own, by whose order labels are known."""
    if tuple(numbers) != CATEGORIES:
        odd = sorted(set(numbers) ^ set(CATEGORIES))
        raise ValueError(
            f"there are {len(numbers)} categories; allowed: COCO's {len(CATEGORIES)}, which differ "
            f"by the numbers {odd[:5]}"
        )
