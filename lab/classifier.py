"""The classifier of the lab: what stands where in a picture, and in which colour."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from lab.data import SceneTensors
from pixalign.bench.scene_classifier import CELL, PRESENT, colour_of, presence
from pixalign.scenes.atlas import class_names

# What must be found: this share of the picture at least, and this share of the object unhidden.
LEAST_AREA, LEAST_SHOWN = 0.01, 0.5


def save_classifier(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Write classifier.safetensors (float16) and the arguments it was built from."""
    weights = {k: v.half().contiguous().cpu() for k, v in model.state_dict().items()}
    save_file(weights, folder / "classifier.safetensors")
    (folder / "classifier.json").write_text(json.dumps(config) + "\n", encoding="utf-8")


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


# ---- what the cells say ----


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
