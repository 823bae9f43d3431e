"""A folder that Hugging Face's datasets loads: pictures, masks and objects."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pixalign.core.files import write_json, writing_whole
from pixalign.labelling.formats.folder import FormatFolder, json_bytes
from pixalign.labelling.records import LabelledPictures
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import mask_image, write_png


def write_image_folder(pictures: LabelledPictures, folder: Path) -> list[str]:
    """train/metadata.jsonl, train/images and train/masks; classes.json names the masks' values.

    ``load_dataset("imagefolder", data_dir=folder)`` gives rows with image, mask and objects.
    """
    files = FormatFolder(folder)
    colours = palette(len(pictures.classes))
    with writing_whole(files.file("train/metadata.jsonl")) as lines:
        for picture in pictures:
            stem = files.stem(picture.key)
            image = f"images/{stem}{PurePosixPath(picture.key).suffix}"
            mask = f"masks/{stem}.png"
            files.add_picture(f"train/{image}", picture.path)
            write_png(files.file(f"train/{mask}"), mask_image(picture.mask, colours))
            objects = {
                "bbox": [list(segment.box) for segment in picture.segments],
                "category": [segment.label for segment in picture.segments],
                "area": [segment.area for segment in picture.segments],
                "score": [round(segment.score, 4) for segment in picture.segments],
            }
            row = {"file_name": image, "mask_file_name": mask, "objects": objects}
            lines.write(json_bytes(row) + b"\n")
    names = {str(index): name for index, name in enumerate(pictures.classes, start=1)}
    write_json(files.file("classes.json"), {"0": "background", **names})
    files.finish()
    return []
