"""Label Studio: tasks with predictions, and what its labelling interface is configured with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from pixalign.core.files import write_text, writing_whole
from pixalign.core.values import Size
from pixalign.labelling.formats.brush import brush_runs
from pixalign.labelling.formats.folder import FormatFolder, write_items
from pixalign.labelling.records import LabelledPicture, LabelledPictures
from pixalign.pictures.coco import placed_outlines
from pixalign.pictures.drawing import palette
from pixalign.pictures.segments import Segment

FROM_NAME, TO_NAME = "label", "image"


def write_label_studio(pictures: LabelledPictures, folder: Path) -> list[str]:
    """tasks.json, to be imported, and labels.xml, the labelling interface.

    Pictures are addressed as local files: LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT is the folder
    that holds the folder of pictures.
    """
    files = FormatFolder(folder)
    version = model_version(pictures.about)

    def tasks() -> Iterator[dict[str, Any]]:
        for picture in pictures:
            made = prediction(
                picture.segments_map, picture.segments, pictures.classes, version=version
            )
            yield {"data": {TO_NAME: local_address(picture)}, "predictions": [made]}

    with writing_whole(files.file("tasks.json")) as file:
        file.write(b"[")
        write_items(file, tasks())
        file.write(b"\n]\n")
    write_text(files.file("labels.xml"), labelling_interface(pictures.classes))
    files.finish()
    return []


def model_version(about: Mapping[str, Any]) -> str:
    """One text for what made the predictions."""
    known = (about.get("model", {}).get("name"), about.get("config", {}).get("method"))
    return " ".join(["pixalign", *(text for text in known if text)])


def local_address(picture: LabelledPicture) -> str:
    """The address of a picture's file below the parent of the folder of pictures."""
    root = picture.path.absolute().parents[picture.key.count("/")]
    relative = picture.path.absolute().relative_to(root.parent)
    return "/data/local-files/?d=" + quote(os.fsencode(relative.as_posix()))


def prediction(
    segments_map: np.ndarray,
    segments: Sequence[Segment],
    classes: Sequence[str],
    *,
    version: str,
    kind: str = "brushlabels",
    from_name: str = FROM_NAME,
    to_name: str = TO_NAME,
) -> dict[str, Any]:
    """What Label Studio calls a prediction of a task: a result a segment, and their mean score.

    ``kind`` is one of `SHAPES`, what the interface draws with.
    """
    size = (segments_map.shape[0], segments_map.shape[1])
    results = [
        {
            "id": f"{segment.number}-{part}",
            "type": kind,
            "from_name": from_name,
            "to_name": to_name,
            "original_width": size[1],
            "original_height": size[0],
            "image_rotation": 0,
            "score": round(segment.score, 4),
            "value": {**value, kind: [classes[segment.label - 1]]},
        }
        for segment in segments
        for part, value in enumerate(SHAPES[kind](segments_map, segment, size), start=1)
    ]
    mean = float(np.mean([segment.score for segment in segments])) if segments else 0.0
    return {"model_version": version, "score": round(mean, 4), "result": results}


def _brush(segments_map: np.ndarray, segment: Segment, size: Size) -> list[dict[str, Any]]:
    return [{"format": "rle", "rle": brush_runs(segments_map == segment.number)}]


def _polygons(segments_map: np.ndarray, segment: Segment, size: Size) -> list[dict[str, Any]]:
    rings = placed_outlines(segments_map, segment).rings
    percent = 100 / np.array([size[1], size[0]])
    return [{"points": np.round(ring * percent, 4).tolist(), "closed": True} for ring in rings]


def _rectangle(segments_map: np.ndarray, segment: Segment, size: Size) -> list[dict[str, Any]]:
    sides = (size[1], size[0], size[1], size[0])
    percents = [100 * value / side for value, side in zip(segment.box, sides, strict=True)]
    x, y, width, height = percents
    return [{"x": x, "y": y, "width": width, "height": height, "rotation": 0}]


# What can be drawn, by the type of the result; numbers but the brush's are per cent.
SHAPES = {"brushlabels": _brush, "polygonlabels": _polygons, "rectanglelabels": _rectangle}


def labelling_interface(classes: Sequence[str]) -> str:
    """The configuration of a project that draws these classes with brushes."""
    colours = palette(len(classes))[1:].tolist()
    labels = [
        "    <Label value={} background={}/>".format(
            quoteattr(name), quoteattr("#{:02x}{:02x}{:02x}".format(*colour))
        )
        for name, colour in zip(classes, colours, strict=True)
    ]
    lines = [
        "<View>",
        f'  <Image name="{TO_NAME}" value="${TO_NAME}" zoom="true"/>',
        f'  <BrushLabels name="{FROM_NAME}" toName="{TO_NAME}">',
        *labels,
        "  </BrushLabels>",
        "</View>",
    ]
    return "\n".join(lines) + "\n"
