"""Formats that annotation tools and trainers read, each a function in a short file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pixalign.core.checks import check_choice
from pixalign.labelling.formats.coco import write_coco, write_coco_polygons, write_cvat
from pixalign.labelling.formats.huggingface import write_image_folder
from pixalign.labelling.formats.label_studio import write_label_studio
from pixalign.labelling.formats.panoptic import write_panoptic
from pixalign.labelling.formats.png import write_masks
from pixalign.labelling.formats.yolo import write_yolo
from pixalign.labelling.records import Format, LabelledPictures

FORMATS: dict[str, Format] = {
    "coco": write_coco,
    "coco-polygons": write_coco_polygons,
    "coco-panoptic": write_panoptic,
    "yolo": write_yolo,
    "label-studio": write_label_studio,
    "cvat": write_cvat,
    "png": write_masks,
    "huggingface": write_image_folder,
}
_OF_PYCOCOTOOLS = ("coco", "cvat")


def check_formats(names: Sequence[str]) -> None:
    """Raise a ValueError unless all these formats are known and can be written here."""
    for name in names:
        check_choice("format", name, tuple(FORMATS))
        if name in _OF_PYCOCOTOOLS and find_spec("pycocotools") is None:
            raise ValueError(f"format {name!r} needs pycocotools: pip install 'pixalign[label]'")


def write_format(name: str, pictures: LabelledPictures, folder: Path) -> list[str]:
    """Write a finished run as files in a folder; what was lost is said, each in a sentence."""
    check_formats([name])
    return list(FORMATS[name](pictures, folder))
