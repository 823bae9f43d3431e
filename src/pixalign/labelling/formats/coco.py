"""COCO instances, as runs or polygons, and the archive that CVAT imports as "COCO 1.0"."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any

from pixalign.core.files import write_bytes, writing_whole
from pixalign.labelling.formats.folder import FormatFolder, HoleCount, json_bytes, write_items
from pixalign.labelling.records import LabelledPicture, LabelledPictures
from pixalign.pictures.coco import (
    compressed_runs,
    flat_points,
    object_annotation,
    placed_outlines,
    run_lengths,
)
from pixalign.pictures.drawing import palette

Annotations = Callable[[int, LabelledPicture], Iterable[Mapping[str, Any]]]


def write_coco(pictures: LabelledPictures, folder: Path) -> list[str]:
    """annotations/instances_train.json with compressed runs: every pixel is exact.

    images/train holds the pictures.
    """
    _write_instances(pictures, folder, _exact(count(1)))
    return []


def write_coco_polygons(pictures: LabelledPictures, folder: Path) -> list[str]:
    """The same with polygons, whose holes are filled."""
    holes, numbers = HoleCount(), count(1)

    def annotations(image: int, picture: LabelledPicture) -> Iterator[dict[str, Any]]:
        for segment in picture.segments:
            outlined = placed_outlines(picture.segments_map, segment)
            holes.add(outlined)
            about = object_annotation(segment, flat_points(outlined))
            yield {"id": next(numbers), "image_id": image, **about}

    _write_instances(pictures, folder, annotations)
    return holes.said("COCO's polygons")


def write_cvat(pictures: LabelledPictures, folder: Path) -> list[str]:
    """annotations.zip for CVAT's "COCO 1.0", and labels.json for the task's raw labels."""
    files = FormatFolder(folder)
    inside = zipfile.ZipInfo("annotations/instances_default.json")
    inside.compress_type = zipfile.ZIP_DEFLATED
    with (
        writing_whole(files.file("annotations.zip")) as file,
        zipfile.ZipFile(file, "w") as archive,
        archive.open(inside, "w", force_zip64=True) as entry,
    ):
        write_dataset(entry, pictures, categories_of(pictures), _exact(count(1)))
    colours = palette(len(pictures.classes))[1:].tolist()
    labels = [
        {"name": name, "type": "mask", "color": "#{:02x}{:02x}{:02x}".format(*colour)}
        for name, colour in zip(pictures.classes, colours, strict=True)
    ]
    write_bytes(files.file("labels.json"), json_bytes(labels))
    files.finish()
    return []


def categories_of(pictures: LabelledPictures) -> list[dict[str, Any]]:
    """COCO's categories: classes by their labels."""
    return [
        {"id": label, "name": name, "supercategory": ""}
        for label, name in enumerate(pictures.classes, start=1)
    ]


def write_dataset(
    file: IO[bytes],
    pictures: LabelledPictures,
    categories: list[dict[str, Any]],
    annotations: Annotations,
) -> None:
    """COCO's file, written while the pictures come by: they are listed at the end.

    ``annotations`` is called with a picture's number, from 1, and the picture.
    """
    images: list[dict[str, Any]] = []

    def rows() -> Iterator[Mapping[str, Any]]:
        for image, picture in enumerate(pictures, start=1):
            height, width = picture.size
            about = {"id": image, "file_name": picture.key, "height": height, "width": width}
            images.append(about)
            yield from annotations(image, picture)

    head = {"info": dict(pictures.about), "licenses": [], "categories": categories}
    file.write(json_bytes(head)[:-1] + b', "annotations": [')
    write_items(file, rows())
    file.write(b'\n], "images": [')
    write_items(file, images)
    file.write(b"\n]}\n")


def _exact(numbers: Iterator[int]) -> Annotations:
    """Annotations with compressed runs."""

    def annotations(image: int, picture: LabelledPicture) -> Iterator[dict[str, Any]]:
        lengths = run_lengths(picture.segments_map, picture.segments)
        for segment, counts in zip(picture.segments, lengths, strict=True):
            runs = compressed_runs(counts, picture.size)
            yield {"id": next(numbers), "image_id": image, **object_annotation(segment, runs)}

    return annotations


def _write_instances(pictures: LabelledPictures, folder: Path, annotations: Annotations) -> None:
    files = FormatFolder(folder)

    def linked(image: int, picture: LabelledPicture) -> Iterable[Mapping[str, Any]]:
        files.add_picture(f"images/train/{picture.key}", picture.path)
        return annotations(image, picture)

    with writing_whole(files.file("annotations/instances_train.json")) as file:
        write_dataset(file, pictures, categories_of(pictures), linked)
    files.finish()
