"""COCO instances, as runs or polygons, and the archive that CVAT imports as "COCO 1.0"."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from pixalign.core.files import write_bytes, writing_whole
from pixalign.labelling.formats.folder import FormatFolder, filled_holes, json_bytes, write_items
from pixalign.labelling.records import LabelledPictures
from pixalign.pictures.coco import (
    compressed_runs,
    flat_points,
    object_annotation,
    placed_outlines,
    run_lengths,
)
from pixalign.pictures.drawing import palette


def write_coco(pictures: LabelledPictures, folder: Path) -> list[str]:
    """instances.json with compressed runs: every pixel is exact."""
    return _write_instances(pictures, folder, polygons=False)


def write_coco_polygons(pictures: LabelledPictures, folder: Path) -> list[str]:
    """instances.json with polygons, whose holes are filled."""
    return _write_instances(pictures, folder, polygons=True)


def write_cvat(pictures: LabelledPictures, folder: Path) -> list[str]:
    """annotations.zip for CVAT's "COCO 1.0", and labels.json for the task's raw labels."""
    files = FormatFolder(folder)
    with TemporaryFile() as text:
        _Instances(pictures, polygons=False).write(text)
        text.seek(0)
        with (
            writing_whole(files.file("annotations.zip")) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open(_IN_ARCHIVE, "w", force_zip64=True) as entry,
        ):
            shutil.copyfileobj(text, entry)
    colours = palette(len(pictures.classes))[1:].tolist()
    labels = [
        {"name": name, "type": "mask", "color": "#{:02x}{:02x}{:02x}".format(*colour)}
        for name, colour in zip(pictures.classes, colours, strict=True)
    ]
    write_bytes(files.file("labels.json"), json_bytes(labels))
    files.finish()
    return []


_IN_ARCHIVE = zipfile.ZipInfo("annotations/instances_default.json")
_IN_ARCHIVE.compress_type = zipfile.ZIP_DEFLATED


def _write_instances(pictures: LabelledPictures, folder: Path, polygons: bool) -> list[str]:
    files = FormatFolder(folder)
    instances = _Instances(pictures, polygons)
    with writing_whole(files.file("instances.json")) as file:
        instances.write(file)
    files.finish()
    return filled_holes(*instances.filled, "COCO's polygons")


class _Instances:
    """COCO's file of instances, written while the pictures come by."""

    def __init__(self, pictures: LabelledPictures, polygons: bool) -> None:
        self._pictures, self._polygons = pictures, polygons
        self._images: list[dict[str, Any]] = []
        self.filled = (0, 0, 0)  # objects with holes, holes, pixels in them

    def write(self, file: BinaryIO) -> None:
        """The annotations first: the list of pictures is known when all have come by."""
        categories = [
            {"id": index, "name": name, "supercategory": ""}
            for index, name in enumerate(self._pictures.classes, start=1)
        ]
        head = {"info": dict(self._pictures.about), "licenses": [], "categories": categories}
        file.write(json_bytes(head)[:-1] + b', "annotations": [')
        write_items(file, self._annotations())
        file.write(b'\n], "images": [')
        write_items(file, self._images)
        file.write(b"\n]}\n")

    def _annotations(self) -> Iterator[dict[str, Any]]:
        number = 0
        for image, picture in enumerate(self._pictures, start=1):
            height, width = picture.size
            about = {"id": image, "file_name": picture.key, "height": height, "width": width}
            self._images.append(about)
            for segment in picture.segments:
                number += 1
                if self._polygons:
                    outlined = placed_outlines(picture.segments_map, segment)
                    shape: Any = flat_points(outlined)
                    more = (bool(outlined.holes), outlined.holes, outlined.hole_pixels)
                    objects, holes, pixels = (a + b for a, b in zip(self.filled, more, strict=True))
                    self.filled = (objects, holes, pixels)
                else:
                    counts = run_lengths(picture.segments_map, segment)
                    shape = compressed_runs(counts, picture.size)
                yield {"id": number, "image_id": image, **object_annotation(segment, shape)}
