"""The classes: names, drawings in two styles, and how often training shows each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

DATA = Path(__file__).parent / "data"
STYLES = ("noto", "fluent")
CELL = 128  # side of one drawing in the sheets
ZIPF_EXPONENT = 0.8
RANK_SEED = 20250613  # fixes which classes are frequent; a trained model depends on it


def class_names() -> tuple[str, ...]:
    """The names of the classes, in the order of every class index."""
    return _column("name")


def plurals() -> tuple[str, ...]:
    """The plural of each class name."""
    return _column("plural")


@cache
def _column(name: str) -> tuple[str, ...]:
    rows = json.loads((DATA / "classes.json").read_text(encoding="utf-8"))
    return tuple(row[name] for row in rows)


@cache
def sprites() -> Tensor:
    """uint8 [classes, 2, 4, 128, 128]: RGBA drawings, colours not premultiplied."""
    styles = []
    for style in STYLES:
        with Image.open(DATA / f"{style}.webp") as image:
            sheet = torch.from_numpy(np.array(image.convert("RGBA")))
        cells = rearrange(sheet, "(r h) (c w) k -> (r c) k h w", h=CELL, w=CELL)
        styles.append(cells[: len(class_names())])
    return torch.stack(styles, dim=1)


def training_ranks() -> np.ndarray:
    """int64 [classes]: 0 for the class that training shows most, a fixed random order."""
    order = np.random.Generator(np.random.Philox(RANK_SEED)).permutation(len(class_names()))
    return np.argsort(order)


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
