"""The classifier of the lab: what stands where in a picture, and in which colour."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from lab.data import SceneTensors
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS

CELL = 8  # pixels on a side of what gets one answer
HIGHEST = 3  # cells whose mean says how surely a class is there
PRESENT = 0.45  # a class is found from this presence on
# What must be found: this share of the picture at least, and this share of the object unhidden.
LEAST_AREA, LEAST_SHOWN = 0.01, 0.5


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


def save_classifier(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Write classifier.safetensors (float16) and the arguments it was built from."""
    weights = {k: v.half().contiguous().cpu() for k, v in model.state_dict().items()}
    save_file(weights, folder / "classifier.safetensors")
    (folder / "classifier.json").write_text(json.dumps(config) + "\n", encoding="utf-8")


# ---- what the cells say ----


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


def visible(scenes: SceneTensors) -> Tensor:
    """bool [B, K]: which objects are large enough and hidden little enough to be asked for."""
    pixels = scenes.visible_areas()
    large = pixels >= LEAST_AREA * scenes.slots[0].numel()
    return large & (pixels >= LEAST_SHOWN * scenes.areas) & (scenes.labels >= 0)


def found_class(class_logits: Tensor) -> Tensor:
    """int64 [B]: the most present class, for pictures of one object."""
    return presence(class_logits).argmax(1)


def scene_figures(
    class_logits: Tensor, colour_logits: Tensor, scenes: SceneTensors
) -> dict[str, float]:
    """How well scenes of several objects are judged, shares in [0, 1].

    ``recall`` of the visible objects, ``precision`` of the found classes, and the right ``colour``
    of the objects found; "tinted" leaves out the objects in their natural colours.
    """
    labels = scenes.labels.clamp_min(0)
    found = presence(class_logits) >= PRESENT
    known = torch.arange(found.shape[1], device=found.device)
    there = (scenes.labels[:, :, None] == known).any(1)
    asked = visible(scenes)
    recalled = asked & found.gather(1, labels)
    colours = [colour_of(class_logits, colour_logits, column) for column in labels.unbind(1)]
    right = recalled & (torch.stack(colours, 1) == scenes.tints)
    tinted = scenes.tints > 0
    return {
        "recall": _share(recalled, asked),
        "recall_tinted": _share(recalled & tinted, asked & tinted),
        "precision": _share(found & there, found),
        "colour": _share(right, recalled),
        "colour_tinted": _share(right & tinted, recalled & tinted),
    }


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.sum() / whole.sum().clamp_min(1))


# ---- what the cells should say ----


def cell_targets(
    slots: Tensor, labels: Tensor, tints: Tensor, cell: int = CELL
) -> tuple[Tensor, Tensor]:
    """What cells of ``cell`` x ``cell`` pixels hold: shares of the classes, and a colour.

    From slots uint8 [B, H, W], 0 the background, 1 + place in labels and tints int64 [B, K]:
    float32 [B, 1 + classes, h, w] that sum to 1 over the classes, 0 the background; and int64
    [B, h, w], the tint of the object that covers most of the cell, -1 where none covers half.
    """
    height, width = slots.shape[1:]
    if height % cell or width % cell:
        raise ValueError(f"scenes have {height} x {width} pixels; multiples of {cell} are expected")
    places = torch.arange(labels.shape[1] + 1, device=slots.device)
    owned = (slots[:, None] == places[:, None, None]).float()
    shares = functional.avg_pool2d(owned, cell)  # [B, 1 + K, h, w]
    columns = functional.pad(labels + 1, (1, 0))[:, :, None, None].expand_as(shares)
    classes = shares.new_zeros(len(slots), 1 + len(class_names()), *shares.shape[2:])
    classes.scatter_add_(1, columns, shares)
    most, place = shares[:, 1:].max(1)
    colours = tints.gather(1, place.flatten(1)).view_as(place)
    return classes, torch.where(most >= 0.5, colours, -1)


def cell_losses(
    logits: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor], weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropies of classes and of colours, means over the cells.

    Objects and background count half each in the first, however much of the pictures they cover;
    ``weights`` [8] are those of the colours, and cells of colour -1 do not count.
    """
    shares, colours = targets
    missed = -functional.log_softmax(logits[0].float(), 1) * shares
    objects = missed[:, 1:].sum() / shares[:, 1:].sum().clamp_min(1e-6)
    ground = missed[:, 0].sum() / shares[:, 0].sum().clamp_min(1e-6)
    tints = functional.cross_entropy(
        logits[1].float(), colours, weight=weights, ignore_index=-1, reduction="sum"
    )
    total = (weights[colours.clamp_min(0)] * (colours >= 0)).sum()
    return (objects + ground) / 2, tints / total.clamp_min(1e-6)


def blurred(images: Tensor, share: float, largest: float, seed: int) -> Tensor:
    """[B, C, S, S] whose first images are made smaller by 1 to ``largest`` and enlarged again.

    They are ``share`` of all, in up to four groups of one factor each.
    """
    many = round(share * len(images))
    if not many:
        return images
    groups = images[:many].chunk(4)
    draws = torch.rand(len(groups), generator=torch.Generator().manual_seed(seed))
    factors = 1 + (largest - 1) * draws
    side, done = images.shape[-1], []
    for group, factor in zip(groups, factors.tolist(), strict=True):
        less = round(side / factor)
        small = functional.interpolate(group, less, mode="bilinear", antialias=True)
        done.append(functional.interpolate(small, side, mode="bilinear"))
    return torch.cat([*done, images[many:]])
