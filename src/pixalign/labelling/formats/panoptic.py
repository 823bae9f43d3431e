"""COCO panoptic: a picture of segment numbers for each picture, and what each number is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import writing_whole
from pixalign.labelling.formats.folder import FormatFolder, json_bytes, write_items
from pixalign.labelling.records import LabelledPictures
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import write_png


def write_panoptic(pictures: LabelledPictures, folder: Path) -> list[str]:
    """annotations/panoptic_train.json, and the PNGs in a folder beside it.

    A pixel's colour is its segment's number, red + 256 green + 65536 blue; black is none.
    """
    files = FormatFolder(folder)
    images: list[dict[str, Any]] = []
    colours = palette(len(pictures.classes)).tolist()
    things = int(pictures.about.get("instances", True))
    categories = [
        {"id": index, "name": name, "supercategory": "", "isthing": things, "color": colours[index]}
        for index, name in enumerate(pictures.classes, start=1)
    ]

    def annotations() -> Iterator[dict[str, Any]]:
        for image, picture in enumerate(pictures, start=1):
            height, width = picture.size
            about = {"id": image, "file_name": picture.key, "height": height, "width": width}
            images.append(about)
            name = files.stem(picture.key) + ".png"
            write_png(
                files.file(f"annotations/panoptic_train/{name}"), numbered(picture.segments_map)
            )
            segments = [
                {
                    "id": segment.number,
                    "category_id": segment.label,
                    "area": segment.area,
                    "bbox": list(segment.box),
                    "iscrowd": 0,
                    "score": round(segment.score, 4),
                }
                for segment in picture.segments
            ]
            yield {"image_id": image, "file_name": name, "segments_info": segments}

    with writing_whole(files.file("annotations/panoptic_train.json")) as file:
        head = {"info": dict(pictures.about), "licenses": [], "categories": categories}
        file.write(json_bytes(head)[:-1] + b', "annotations": [')
        write_items(file, annotations())
        file.write(b'\n], "images": [')
        write_items(file, images)
        file.write(b"\n]}\n")
    files.finish()
    return []


def numbered(segments_map: np.ndarray) -> Image.Image:
    """An RGB picture whose colours are numbers below 65,536."""
    blue = np.zeros_like(segments_map)
    bytes_ = np.stack([segments_map % 256, segments_map // 256, blue], axis=-1)
    return Image.fromarray(bytes_.astype(np.uint8))
