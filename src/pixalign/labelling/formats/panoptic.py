"""COCO panoptic: a picture of segment numbers for each picture, and what each number is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import writing_whole
from pixalign.labelling.formats.coco import categories_of, write_dataset
from pixalign.labelling.formats.folder import FormatFolder
from pixalign.labelling.records import LabelledPicture, LabelledPictures
from pixalign.pictures.coco import object_annotation
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import write_png


def write_panoptic(pictures: LabelledPictures, folder: Path) -> list[str]:
    """annotations/panoptic_train.json, the PNGs in a folder beside it, and images/train.

    A pixel's colour is its segment's number, red + 256 green + 65536 blue; black is none.
    """
    files = FormatFolder(folder)

    def annotations(image: int, picture: LabelledPicture) -> Iterator[dict[str, Any]]:
        files.add_picture(f"images/train/{picture.key}", picture.path)
        name = files.stem(picture.key) + ".png"
        path = files.file(f"annotations/panoptic_train/{name}")
        write_png(path, numbered(picture.segments_map))
        segments = [{"id": s.number, **object_annotation(s)} for s in picture.segments]
        yield {"image_id": image, "file_name": name, "segments_info": segments}

    colours = palette(len(pictures.classes)).tolist()
    things = int(pictures.about.get("instances", True))
    categories: list[dict[str, Any]] = [
        {**category, "isthing": things, "color": colours[category["id"]]}
        for category in categories_of(pictures)
    ]
    with writing_whole(files.file("annotations/panoptic_train.json")) as file:
        write_dataset(file, pictures, categories, annotations)
    files.finish()
    return []


def numbered(segments_map: np.ndarray) -> Image.Image:
    """An RGB picture whose colours are numbers below 65,536."""
    blue = np.zeros_like(segments_map)
    bytes_ = np.stack([segments_map % 256, segments_map // 256, blue], axis=-1)
    return Image.fromarray(bytes_.astype(np.uint8))
