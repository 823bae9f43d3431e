"""YOLO segmentation: a text file of polygons beside each picture."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import yaml

from pixalign.core.files import write_text
from pixalign.labelling.formats.folder import FormatFolder, HoleCount
from pixalign.labelling.records import LabelledPictures
from pixalign.pictures.coco import placed_outlines
from pixalign.pictures.polygons import Ring


def write_yolo(pictures: LabelledPictures, folder: Path) -> list[str]:
    """images/train, labels/train and data.yaml.

    A row is a class from 0 and the points of one ring over the picture's width and height. A
    segment of several parts has a row for each; a picture without segments has an empty file.
    """
    files = FormatFolder(folder)
    holes = HoleCount()
    for picture in pictures:
        height, width = picture.size
        stem = files.stem(picture.key)
        rows = []
        for segment in picture.segments:
            found = placed_outlines(picture.segments_map, segment)
            holes.add(found)
            rows += [_row(segment.label - 1, ring / (width, height)) for ring in found.rings]
        files.add_picture(f"images/train/{stem}{PurePosixPath(picture.key).suffix}", picture.path)
        write_text(files.file(f"labels/train/{stem}.txt"), "".join(rows))
    about = {
        "train": "images/train",
        "val": "images/train",
        "names": dict(enumerate(pictures.classes)),
    }
    text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    write_text(files.file("data.yaml"), text)
    files.finish()
    return holes.said("YOLO's rows")


def _row(label: int, ring: Ring) -> str:
    return " ".join([str(label), *(f"{value:.6f}" for value in ring.ravel().tolist())]) + "\n"
