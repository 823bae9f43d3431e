"""Scenes as files for people and other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import make_folder, write_json
from pixalign.pictures.drawing import palette
from pixalign.pictures.grid import Cell, in_rows, picture_grid
from pixalign.pictures.saving import mask_image, write_png
from pixalign.scenes.atlas import STYLES, class_names, training_shares
from pixalign.scenes.render import Rendered, render
from pixalign.scenes.sample import (
    COLOURS,
    SceneBatch,
    attribute_captions,
    full_captions,
    sample_scenes,
)

SHEET_CELL, SHEET_COLUMNS = 192, 4
SHEET_SCENES = 48
BATCH = 32


def write_scenes(
    split: str, count: int, out: str | os.PathLike[str], *, start: int = 0, size: int = 256
) -> list[Path]:
    """Write ``count`` scenes of a split into a folder; the paths, in the order written.

    Per scene ``NNNNN.png`` and ``NNNNN_mask.png`` (palette PNG: 0 background, 1 + class index);
    for all ``scenes.json`` and ``sheet.png``, which shows the first 48.
    """
    scenes = sample_scenes(split, start, count)
    folder, colours = make_folder(out), palette(len(class_names()))
    paths: list[Path] = []
    entries: list[dict[str, Any]] = []
    cells: list[Cell] = []
    for low in range(0, count, BATCH):
        batch = scenes[low : low + BATCH]
        painted = render(batch, size)
        pictures, masks = painted.pictures(), painted.masks.numpy()
        for scene, entry in enumerate(describe(batch, painted)):
            name = f"{start + low + scene:05d}"
            image, mask = pictures[scene], masks[scene]
            paths.append(write_png(folder / f"{name}.png", Image.fromarray(image)))
            paths.append(write_png(folder / f"{name}_mask.png", mask_image(mask, colours)))
            entries.append({"image": f"{name}.png", "mask": f"{name}_mask.png", **entry})
            beside = Image.fromarray(np.concatenate([image, colours[mask]], axis=1))
            cells = [*cells, (beside, entry["captions"]["full"])][:SHEET_SCENES]
    sheet = picture_grid(in_rows(cells, SHEET_COLUMNS), side=2 * SHEET_CELL, gap=8, text=12)
    values = {"split": split, "start": start, "size": size, "scenes": entries}
    paths.append(write_json(folder / "scenes.json", values))
    paths.append(write_png(folder / "sheet.png", sheet))
    return paths


def describe(batch: SceneBatch, painted: Rendered) -> list[dict[str, Any]]:
    """What is known of each scene, as plain values: captions and objects, back to front.

    Boxes [y0, x0, y1, x1] enclose an object's visible pixels, y1 and x1 exclusive; null where
    none is visible.
    """
    names, frequencies = class_names(), training_shares()
    slots, visible = painted.slots.cpu().numpy(), painted.visible_shares().cpu().numpy()
    full, attribute = full_captions(batch), attribute_captions(batch)
    scenes = []
    for scene, train in enumerate(batch.captions):
        captions = {"full": full[scene], "attribute": attribute[scene], "train": train}
        objects = [
            {
                "name": names[label],
                "label": int(label) + 1,
                "box": _box(slots[scene] == slot + 1),
                "size": round(float(batch.sizes[scene, slot]), 4),
                "visible_share": round(float(visible[scene, slot]), 4),
                "training_share": round(float(frequencies[label]), 6),
                "style": STYLES[batch.styles[scene, slot]],
                "colour": COLOURS[batch.tints[scene, slot]],
            }
            for slot, label in enumerate(batch.labels[scene])
            if label >= 0
        ]
        scenes.append({"captions": captions, "objects": objects})
    return scenes


def _box(pixels: np.ndarray) -> list[int] | None:
    box = Image.fromarray(pixels).getbbox()
    return None if box is None else [box[1], box[0], box[3], box[2]]
