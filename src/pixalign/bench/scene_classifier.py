"""A small network that says what stands where in a scene, and in which colour."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from pixalign.scenes.sample import COLOURS

CELL = 8  # pixels on a side of what gets one answer
HIGHEST = 3  # cells whose mean says how surely a class is there
PRESENT = 0.45  # a class is found from this presence on


class SceneClassifier(nn.Module):
    """What stands in each cell of CELL x CELL pixels, and in which of the COLOURS.

    ``channels`` are those at a half, a quarter and an eighth of the side, then of coarser levels,
    whose context comes back to the cells.
    """

    def __init__(self, classes: int, channels: Sequence[int], groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels[0], 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Block(a, b, groups) for a, b in pairwise(channels))
        self.merges = nn.ModuleList(_Merge(a, b, groups) for a, b in pairwise(channels[2:]))
        self.norm = nn.GroupNorm(groups, channels[2])
        self.classes = nn.Conv2d(channels[2], 1 + classes, 1)
        self.colours = nn.Conv2d(channels[2], len(COLOURS), 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [B, 3, H, W] in [0, 1]: logits [B, 1 + classes, h, w], 0 the background, and
        logits of colours [B, 8, h, w]; h = H / CELL, w = W / CELL, rounded up."""
        levels = [self.stem(images * 2 - 1)]
        for block in self.blocks:
            levels.append(block(levels[-1]))
        hidden = levels.pop()
        for merge in reversed(self.merges):
            hidden = merge(levels.pop(), hidden)
        hidden = functional.silu(self.norm(hidden))
        return self.classes(hidden), self.colours(hidden)


class _Block(nn.Module):
    """Halves the side: a strided residual unit, then a plain one."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, outputs, 3, stride=s, padding=1)
            for a, s in ((inputs, 2), (outputs, 1), (outputs, 1))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(groups, c) for c in (inputs, outputs, outputs))

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, H/2, W/2], rounded up."""
        skip = self.skip(functional.avg_pool2d(hidden, 2, ceil_mode=True))
        hidden = self.convs[0](functional.silu(self.norms[0](hidden)))
        hidden = self.convs[1](functional.silu(self.norms[1](hidden))) + skip
        out: Tensor = hidden + self.convs[2](functional.silu(self.norms[2](hidden)))
        return out


class _Merge(nn.Module):
    """Adds a coarser level to a finer one, then a residual unit."""

    def __init__(self, fine: int, coarse: int, groups: int) -> None:
        super().__init__()
        self.context = nn.Conv2d(coarse, fine, 1)
        self.norm = nn.GroupNorm(groups, fine)
        self.conv = nn.Conv2d(fine, fine, 3, padding=1)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """[B, fine, H, W] and [B, coarse, H/2, W/2], rounded up, to [B, fine, H, W]."""
        context = self.context(coarse).repeat_interleave(2, 2).repeat_interleave(2, 3)
        hidden = fine + context[:, :, : fine.shape[2], : fine.shape[3]]
        out: Tensor = hidden + self.conv(functional.silu(self.norm(hidden)))
        return out


def load_classifier(folder: Path, device: str) -> SceneClassifier:
    """The classifier that `save_classifier` wrote, in float32."""
    model = SceneClassifier(**json.loads((folder / "classifier.json").read_text("utf-8")))
    model.load_state_dict(load_file(folder / "classifier.safetensors"))
    return model.to(device).eval()


@torch.no_grad()
def look(model: nn.Module, images: Tensor, size: int = 64) -> tuple[Tensor, Tensor]:
    """Both logits of any number of images, so many at once, on the model's device."""
    device = next(model.parameters()).device
    parts = [model(images[i : i + size].to(device)) for i in range(0, len(images), size)]
    classes, colours = zip(*parts, strict=True)
    return torch.cat(classes), torch.cat(colours)


def look_at(model: nn.Module, pictures: Sequence[Image.Image]) -> tuple[Tensor, Tensor]:
    """Both logits of RGB pictures of one size."""
    pixels = np.stack([np.asarray(picture, dtype=np.float32) / 255 for picture in pictures])
    return look(model, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def presence(class_logits: Tensor) -> Tensor:
    """float32 [B, classes] in [0, 1]: how surely each class stands somewhere.

    The mean probability of the HIGHEST cells; one from PRESENT on is found.
    """
    likely = class_logits.float().softmax(1)[:, 1:].flatten(2)
    return likely.topk(min(HIGHEST, likely.shape[2]), dim=2).values.mean(2)


def colour_of(class_logits: Tensor, colour_logits: Tensor, labels: Tensor) -> Tensor:
    """int64 [B] into COLOURS: the colour in which the class of labels int64 [B] is there.

    Logits of colours count as much as the class is probable in their cells.
    """
    scenes = torch.arange(len(labels), device=labels.device)
    weights = class_logits.float().softmax(1)[scenes, 1 + labels]  # [B, h, w]
    return (weights[:, None] * colour_logits.float()).sum((2, 3)).argmax(1)


def recognised(class_logits: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """bool [B]: whether inside a mask bool [B, H, W] the most probable class is the given one.

    The background does not count; a mask without pixels shows nothing.
    """
    side = (class_logits.shape[-2], class_logits.shape[-1])
    inside = functional.interpolate(mask[:, None].float(), side, mode="area")
    likely = (class_logits.float().softmax(1)[:, 1:] * inside).sum((2, 3))
    return (likely.argmax(1) == labels) & mask.flatten(1).any(1)
