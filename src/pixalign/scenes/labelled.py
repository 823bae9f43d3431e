"""Scenes beside their truth: which classes are visible, where, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
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

    @property
    def image(self) -> Image.Image:
        """The picture for people."""
        return to_pictures(self.picture[None])[0]

    def in_class_order(self) -> LabelledScene:
        """The same scene with its classes in the order of the class list."""
        order = sorted(range(len(self.labels)), key=self.labels.__getitem__)
        moved = torch.zeros(len(order) + 1, dtype=torch.int64, device=self.truth.device)
        for place, before in enumerate(order, start=1):
            moved[before + 1] = place
        return replace(
            self,
            truth=moved[self.truth],
            labels=tuple(self.labels[place] for place in order),
            area=tuple(self.area[place] for place in order),
            visible=tuple(self.visible[place] for place in order),
        )


def labelled_scenes(
    batch: SceneBatch, size: int, device: str, first: int = 0
) -> list[LabelledScene]:
    """The scenes as a model sees them."""
    drawn = render(batch, size=size, device=device)
    pictures = (drawn.images * 255).round() / 255
    seen, alone = drawn.visible_areas().tolist(), drawn.areas.tolist()
    found = []
    for index, slots in enumerate(class_slots(batch)):
        pixels = {label: sum(seen[index][slot] for slot in own) for label, own in slots.items()}
        present = [label for label, count in pixels.items() if count]
        whole = [sum(alone[index][slot] for slot in slots[label]) for label in present]
        mask = drawn.masks[index].long()
        truth = torch.zeros_like(mask)
        for place, label in enumerate(present, start=1):
            truth[mask == label + 1] = place
        found.append(
            LabelledScene(
                picture=pictures[index],
                truth=truth,
                labels=tuple(present),
                area=tuple(pixels[label] / truth.numel() for label in present),
                visible=tuple(
                    pixels[label] / max(own, 1) for label, own in zip(present, whole, strict=True)
                ),
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
