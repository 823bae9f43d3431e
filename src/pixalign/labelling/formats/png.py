"""Masks as indexed PNGs, which every tool can read."""

from __future__ import annotations

from pathlib import Path

from pixalign.core.files import write_text
from pixalign.labelling.formats.folder import FormatFolder
from pixalign.labelling.records import LabelledPictures
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import mask_image, write_png


def write_masks(pictures: LabelledPictures, folder: Path) -> list[str]:
    """A mask for each picture, in the same folders below masks/, and classes.txt.

    Pixels hold 0 for the background and i for line i of classes.txt: 8 bits and a palette, or 16
    bits of grey where there are more than 255 classes.
    """
    files = FormatFolder(folder)
    colours = palette(len(pictures.classes))
    for picture in pictures:
        name = f"masks/{files.stem(picture.key)}.png"
        write_png(files.file(name), mask_image(picture.mask, colours))
    write_text(files.file("classes.txt"), "".join(f"{name}\n" for name in pictures.classes))
    files.finish()
    return []
