"""Miniature datasets in the layouts in which the real ones come: pictures of 16x12 pixels."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny
from pixalign.bench.datasets import Dataset, open_dataset
from pixalign.bench.datasets.coco import CATEGORIES

WIDE, HIGH = 16, 12


def beside(path: Path) -> Path:
    """A path whose folder exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def photo(path: Path, *, seed: int = 0, mode: str = "RGB", **options: object) -> None:
    tiny.photo(WIDE, HIGH, seed).convert(mode).save(beside(path), **options)


def labels(*values: int) -> np.ndarray:
    """uint8 [12, 16]: the values as equal columns from left to right."""
    return np.repeat(np.array(values, dtype=np.uint8), WIDE // len(values))[None].repeat(HIGH, 0)


def mask(path: Path, values: np.ndarray, palette: list[int] | None = None) -> None:
    image = Image.fromarray(values)
    if palette is not None:
        image = Image.frombytes("P", image.size, values.tobytes())
        image.putpalette(palette)
    image.save(beside(path))


def lines(path: Path, *names: str) -> None:
    beside(path).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def pairs(images: Path, masks: Path, content: dict, image: str = "{}.jpg", truth: str = "{}.png"):
    """Photos and their masks, by key the columns' values; the names are made of the keys."""
    for seed, (key, values) in enumerate(content.items()):
        photo(images / image.format(key), seed=seed)
        mask(masks / truth.format(key), labels(*values))


def voc(root: Path, masks: str = "SegmentationClass") -> Path:
    home = root / "VOCdevkit" / "VOC2012"
    photo(home / "JPEGImages" / "2008_000001.jpg", seed=2)
    content = {"2007_000033": (0, 1, 20, 255), "2007_000042": (0, 255)}
    pairs(home / "JPEGImages", home / masks, content)
    lines(home / "ImageSets" / "Segmentation" / "val.txt", "2007_000042", "2007_000033")
    return home


def context(root: Path) -> Path:
    home = root / "VOCdevkit" / "VOC2010"
    content = {"b": (0, 1), "a": (59, 7), "train": (3, 3)}
    pairs(home / "JPEGImages", home / "SegmentationClassContext", content)
    lines(home / "ImageSets" / "SegmentationContext" / "val.txt", "b", "a")
    return home


def ade20k(root: Path) -> Path:
    home = root / "ade" / "ADEChallengeData2016"
    content = {"ADE_val_00000002": (0, 1), "ADE_val_00000001": (150, 13)}
    pairs(home / "images" / "validation", home / "annotations" / "validation", content)
    return home


def coco(root: Path) -> Path:
    home = root / "coco_stuff164k"
    images, masks = home / "images" / "val2017", home / "annotations" / "val2017"
    content = {"000000000139": (0, 79, 80, 255), "000000000285": (170, 91)}
    pairs(images, masks, content, truth="{}_labelTrainIds.png")
    for key in content:
        mask(masks / f"{key}.png", labels(99, 99))  # the numbers before conversion
    return home


def box(left: int, top: int, right: int, bottom: int) -> list[list[float]]:
    """A COCO polygon; right and bottom are exclusive."""
    return [[left, top, right, top, right, bottom, left, bottom]]


def instances(
    root: Path, annotations: list[dict], categories: tuple[int, ...] = CATEGORIES
) -> Path:
    """COCO without PNG masks; image 139 has the annotations, 285 none."""
    home = root / "coco_stuff164k"
    images = []
    for seed, number in enumerate((285, 139)):
        name = f"000000000{number}.jpg"
        photo(home / "images" / "val2017" / name, seed=seed)
        images.append({"id": number, "file_name": name, "height": HIGH, "width": WIDE})
    content = {
        "images": images,
        "annotations": [{"image_id": 139, "iscrowd": 0, **one} for one in annotations],
        "categories": [{"id": number, "name": str(number)} for number in categories],
    }
    path = beside(home / "annotations" / "instances_val2017.json")
    path.write_text(json.dumps(content))
    return path


PHRASES = {
    "generate_0": {"subject": ["rabbit", "suitcase"], "phrase": ["three baby rabbits", "a pink"]},
    "generate_10": {"subject": ["dog", "rainbow"], "phrase": ["a golden dog", "a rainbow"]},
}


def aep(root: Path, phrases: object = PHRASES) -> Path:
    content = {"generate_0": (0, 29, 3, 0), "generate_10": (20, 0, 0, 0)}
    pairs(root / "images", root / "annotations", content, image="{}.png", truth="{}_gt.png")
    (root / "phrases.json").write_text(json.dumps(phrases))
    return root


def folder(root: Path) -> Path:
    photo(root / "images" / "a.jpg")
    photo(root / "images" / "b.png", mode="P")
    mask(root / "masks" / "a.png", labels(0, 1, 2, 255))
    mask(root / "masks" / "b.png", labels(2, 2), palette=[9, 8, 7] * 256)
    lines(root / "classes.txt", "cat", "hot dog")
    return root


BUILDERS = {
    "voc": voc, "context": context, "coco": coco, "ade20k": ade20k, "aep": aep, "folder": folder,
}  # fmt: skip


def built(name: str, root: Path) -> tuple[Path, Dataset]:
    """The miniature of a dataset: its own folder, and what opening it gives."""
    return BUILDERS[name](root), open_dataset(name, root)


def refused(kind: type[Exception], message: str, *opened: object, **options: object) -> None:
    """Opening a dataset so is an error that says this."""
    with pytest.raises(kind, match=message):
        open_dataset(*opened, **options)
