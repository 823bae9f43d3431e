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
    number: int  # in its split

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
        moved = torch.tensor([0, *(1 + order.index(place) for place in range(len(order)))])
        truth, labels = moved.to(self.truth.device)[self.truth], tuple(sorted(self.labels))
        columns = (self.area, self.visible)
        area, visible = (tuple(column[place] for place in order) for column in columns)
        return replace(self, truth=truth, labels=labels, area=area, visible=visible)


def labelled_scenes(
    batch: SceneBatch, size: int, device: str, first: int = 0
) -> list[LabelledScene]:
    """The scenes as a model sees them."""
    drawn = render(batch, size=size, device=device)
    pictures = (drawn.images * 255).round() / 255
    seen, alone = drawn.visible_areas().tolist(), drawn.areas.tolist()
    scenes = []
    for index, slots in enumerate(class_slots(batch)):
        pixels = {label: sum(seen[index][slot] for slot in own) for label, own in slots.items()}
        whole = {label: sum(alone[index][slot] for slot in own) for label, own in slots.items()}
        labels = tuple(label for label, count in pixels.items() if count)
        mask = drawn.masks[index].long()
        truth = torch.zeros_like(mask)
        for place, label in enumerate(labels, start=1):
            truth[mask == label + 1] = place
        area = tuple(pixels[label] / truth.numel() for label in labels)
        visible = tuple(pixels[label] / max(whole[label], 1) for label in labels)
        scenes.append(LabelledScene(pictures[index], truth, labels, area, visible, first + index))
    return scenes


def native_side(backbone: Any) -> int:
    """The side of the scenes that a model was trained on."""
    height, width = backbone.native_size
    if height != width:
        raise ValueError(f"the model's pictures are {height}x{width}; scenes are square")
    return int(height)
