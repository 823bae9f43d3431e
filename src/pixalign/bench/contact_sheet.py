"""One look at a drawn dataset: pictures beside their masks, and what of them is not annotated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from pixalign.bench.metrics import IGNORE
from pixalign.pictures.drawing import tinted
from pixalign.pictures.fonts import Lettering
from pixalign.pictures.grid import Cell, in_rows, picture_grid

SHOWN, COLUMNS, SIDE, TEXT = 18, 3, 192, 13  # pictures, those in a row, and sizes in pixels


def contact_sheet(
    out: Path,
    images: Sequence[str],
    records: Mapping[str, Mapping[str, Any]],
    classes: Sequence[str],
) -> Image.Image:
    """SHOWN pictures at even distances, each beside its mask; what is not counted is white.

    Below stand the prompt, and what of it is not annotated, and why.
    """
    step = max(1, len(images) // SHOWN)
    cells: list[Cell] = []
    for image in images[::step][:SHOWN]:
        name = image.removesuffix(".png")
        with Image.open(out / "images" / image) as picture:
            shown = picture.convert("RGB")
        with Image.open(out / "annotations" / f"{name}_gt.png") as file:
            mask = np.asarray(file)
        why = (f"{each['name']}: {_why_not(each)}" for each in records[name]["objects"])
        left_out = [text for text in why if not text.endswith(": ")]
        masked = _named(shown, mask, classes)
        cells += [(shown, records[name]["prompt"]), (masked, ", ".join(left_out))]
    return picture_grid(in_rows(cells, 2 * COLUMNS), side=SIDE, lines=2, text=TEXT, gap=8)


def _why_not(said: Mapping[str, Any]) -> str:
    """Why an object is not annotated, in words; nothing where it is."""
    if said["annotated"]:
        return ""
    if not said["share"]:
        return "not found"
    return "below a bound" if said["verdict"] in (None, "sure") else str(said["verdict"])


def _named(picture: Image.Image, mask: np.ndarray, classes: Sequence[str]) -> Image.Image:
    """The mask in colours, SIDE pixels on its longer side, each class named where it is."""
    unknown = mask == IGNORE
    pixels = np.array(tinted(picture, np.where(unknown, 0, mask)))
    pixels[unknown] = 255
    scale = SIDE / max(mask.shape)
    size = round(mask.shape[1] * scale), round(mask.shape[0] * scale)
    shown = Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
    draw, letters = ImageDraw.Draw(shown), Lettering.of(classes, TEXT)
    font = letters.font
    for label in np.unique(mask[(mask > 0) & ~unknown]).tolist():
        text = letters.write(classes[label - 1])
        middle = [float(np.median(places)) * scale for places in np.nonzero(mask == label)]
        half = min(font.getlength(text) / 2 + 3, size[0] / 2)
        place = (min(max(middle[1], half), size[0] - half), min(max(middle[0], 9), size[1] - 9))
        draw.text(
            place, text, fill="black", font=font, anchor="mm", stroke_width=2, stroke_fill="white"
        )
    return shown
