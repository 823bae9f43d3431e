"""Scenes beside their truth: which classes are visible, where, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.scenes.atlas import class_names
from pixalign.scenes.render import render
from pixalign.scenes.sample import SceneBatch


@dataclass(frozen=True, eq=False)
class LabelledScene:
    """One scene: its picture float32 [3, H, W] in [0, 1], in 8-bit steps, and the truth.

    ``truth`` int64 [H, W] is 0 on the background and i on class ``labels[i - 1]``. ``labels``
    are the classes with a visible pixel, in the order in which the caption names them; ``area``
    is each one's share of the picture and ``visible`` the share of it that nothing covers.
    """

    picture: Tensor
    truth: Tensor
    labels: tuple[int, ...]
    area: tuple[float, ...]
    visible: tuple[float, ...]
    number: int

    @property
    def names(self) -> list[str]:
        """The classes' names."""
        return [class_names()[label] for label in self.labels]


def labelled_scenes(
    batch: SceneBatch, size: int, device: str, first: int = 0
) -> list[LabelledScene]:
    """The scenes as an aligner sees them."""
    drawn = render(batch, size=size, device=device)
    shares = torch.stack([(drawn.slots == s + 1).sum((1, 2)) for s in range(drawn.areas.shape[1])])
    pictures = (drawn.images * 255).round() / 255
    found = []
    for index in range(len(batch)):
        mask, seen, alone = drawn.masks[index].long(), shares[:, index], drawn.areas[index]
        slots: dict[int, list[int]] = {}
        for slot in batch.order[index].tolist():
            if batch.labels[index][slot] >= 0:
                slots.setdefault(int(batch.labels[index][slot]), []).append(slot)
        present = [label for label in slots if int(seen[slots[label]].sum())]
        truth = torch.zeros_like(mask)
        for place, label in enumerate(present):
            truth[mask == label + 1] = place + 1
        pixels = [int(seen[slots[label]].sum()) for label in present]
        whole = [int(alone[slots[label]].sum()) for label in present]
        found.append(
            LabelledScene(
                picture=pictures[index],
                truth=truth,
                labels=tuple(present),
                area=tuple(count / truth.numel() for count in pixels),
                visible=tuple(s / max(w, 1) for s, w in zip(pixels, whole, strict=True)),
                number=first + index,
            )
        )
    return found


def native_side(backbone: Any) -> int:
    """The side of the scenes that a model was trained on."""
    height, width = backbone.native_size
    if height != width:
        raise ValueError(f"the model's pictures are {height}x{width}; scenes are square")
    return int(height)
