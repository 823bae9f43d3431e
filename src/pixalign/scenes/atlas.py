"""The classes: names, drawings in two styles, and how often training shows each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

DATA = Path(__file__).parent / "data"
STYLES = ("noto", "fluent")
CELL = 128  # side of one drawing in the sheets
ZIPF_EXPONENT = 0.8
RANK_SEED = 20250613  # fixes which classes are frequent; a trained model depends on it


@cache
def class_names() -> tuple[str, ...]:
    """The names of the classes, in the order of every class index."""
    return tuple(row["name"] for row in _rows())


@cache
def plurals() -> tuple[str, ...]:
    """The plural of each class name."""
    return tuple(row["plural"] for row in _rows())


@cache
def sprites() -> Tensor:
    """uint8 [classes, 2, 4, 128, 128]: RGBA drawings, colours not premultiplied."""
    count = len(class_names())
    styles = []
    for style in STYLES:
        with Image.open(DATA / f"{style}.webp") as image:
            sheet = np.array(image.convert("RGBA"))
        rows, columns = sheet.shape[0] // CELL, sheet.shape[1] // CELL
        cells = sheet.reshape(rows, CELL, columns, CELL, 4).transpose(0, 2, 4, 1, 3)
        styles.append(cells.reshape(rows * columns, 4, CELL, CELL)[:count])
    return torch.from_numpy(np.stack(styles, axis=1))


def training_ranks() -> np.ndarray:
    """int64 [classes]: 0 for the class that training shows most, a fixed random order."""
    order = np.random.Generator(np.random.Philox(RANK_SEED)).permutation(len(class_names()))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks


def training_shares() -> np.ndarray:
    """float64 [classes]: each class's share of the training objects; they sum to 1.

    Zipf's law, (1 + rank)^-0.8. The exponent is mild enough that the rarest class still keeps
    more than 0.2 % of all objects.
    """
    weights = (1.0 + training_ranks()) ** -ZIPF_EXPONENT
    shares: np.ndarray = weights / weights.sum()
    return shares


def training_counts() -> dict[str, float]:
    """`training_shares` by class name."""
    return dict(zip(class_names(), training_shares().tolist(), strict=True))


@cache
def _rows() -> tuple[dict[str, str], ...]:
    return tuple(json.loads((DATA / "classes.json").read_text(encoding="utf-8")))
