"""Scenes beside their truth: which classes are visible, where, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pixalign.diffusion.sampling import to_pictures
from pixalign.scenes.atlas import class_names
from pixalign.scenes.render import render
from pixalign.scenes.sample import SceneBatch, class_slots


@dataclass(frozen=True, eq=False)
class LabelledScene:
    """One scene: its picture and the truth int64 [H, W], 0 on the background and i on class
    ``labels[i - 1]``.

    ``labels`` are the classes with a visible pixel; ``area`` is each one's share of the picture
    and ``visible`` the share of it that nothing covers.
    """

    image: Image.Image
    truth: Tensor
    labels: tuple[int, ...]
    area: tuple[float, ...]
    visible: tuple[float, ...]
    number: int  # in its split

    @property
    def names(self) -> list[str]:
        """The classes' names."""
        return [class_names()[label] for label in self.labels]


def labelled_scenes(
    batch: SceneBatch, size: int, first: int = 0, *, class_order: bool = False
) -> list[LabelledScene]:
    """The scenes as a model sees them; their classes as captions name them, or as the class list.

    ``first`` is the number of the first one in its split.
    """
    drawn = render(batch, size)
    pictures, scenes = to_pictures(drawn.images), []
    for index, groups in enumerate(class_slots(batch)):
        mask = drawn.masks[index]
        truth = torch.zeros_like(mask, dtype=torch.int64)
        shares: dict[int, tuple[float, float]] = {}
        for label in sorted(groups) if class_order else groups:
            pixels = int((mask == label + 1).sum())
            if pixels:
                alone = int(drawn.areas[index, groups[label]].sum())
                shares[label] = (pixels / mask.numel(), pixels / alone)
                truth[mask == label + 1] = len(shares)
        area, visible = zip(*shares.values(), strict=True)
        scenes.append(
            LabelledScene(pictures[index], truth, tuple(shares), area, visible, first + index)
        )
    return scenes


def native_side(backbone: Any) -> int:
    """The side of the scenes that a model was trained on."""
    height, width = backbone.native_size
    if height != width:
        raise ValueError(f"the model's pictures are {height}x{width}; scenes are square")
    return int(height)
