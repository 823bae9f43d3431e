"""The masks that a run finds, as files: ``masks/ROW/KEY.png``, indexed like the dataset's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from pixalign.bench.subject import Subject
from pixalign.core.files import make_folder, slug
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import mask_image, write_png

FOLDER = "masks"
_PLAIN = re.compile(r"\w[\w.-]{0,99}")


class FoundMasks:
    """Folders below a run's for the rows of those names, numbered in their order."""

    def __init__(self, folder: Path, rows: Sequence[str]) -> None:
        self.folders = {
            name: make_folder(folder / FOLDER / f"{number}-{slug(name)}")
            for number, name in enumerate(rows, 1)
        }
        self.colours = palette(255)

    def write(self, subject: Subject, row: str, heatmaps: Tensor, threshold: float) -> Path:
        """A picture's mask at a threshold: 0 is background, 1 + c class c of the dataset.

        ``heatmaps`` [N, H, W] are of the subject's classes, of which there may be none.
        """
        values = heatmaps.cpu().numpy()
        numbers = np.array([0, *(label + 1 for label in subject.labels)], dtype=np.uint8)
        mask = np.zeros(subject.size, dtype=np.int64)
        if len(values):
            mask = np.where(values.max(0) >= threshold, values.argmax(0) + 1, 0)
        key = subject.sample.key
        name = key if _PLAIN.fullmatch(key) else f"{subject.index}-{slug(key)}"
        image = mask_image(numbers[mask], self.colours)
        return write_png(self.folders[row] / f"{name}.png", image)
