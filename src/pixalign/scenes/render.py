"""Paint scenes: pictures and exact masks, on the CPU or a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pixalign.scenes.atlas import CELL, sprites
from pixalign.scenes.sample import COLOURS, SceneBatch

# Copies of the drawings blurred by a Gaussian of these widths (in their own pixels), and from
# which reduction of the drawing on each copy is used.
BLURS = (0.0, 0.9, 2.0)
REDUCTIONS = (1.7, 3.2)

# A tinted object keeps this much of its own colours; the rest is its shading in the new one.
NATURAL_SHARE = 0.1
TINTS = {
    "red": (0.88, 0.10, 0.12),
    "blue": (0.10, 0.30, 0.92),
    "green": (0.10, 0.62, 0.18),
    "yellow": (0.98, 0.85, 0.08),
    "purple": (0.52, 0.14, 0.78),
    "orange": (1.00, 0.50, 0.04),
    "pink": (1.00, 0.45, 0.72),
}


@dataclass(frozen=True, eq=False)
class Rendered:
    """B painted scenes on one device."""

    images: Tensor  # float32 [B, 3, size, size], RGB in [0, 1]
    masks: Tensor  # uint8 [B, size, size], 0 background, 1 + class index
    slots: Tensor  # uint8 [B, size, size], 0 background, 1 + slot
    areas: Tensor  # int64 [B, K], pixels each object would own if it stood alone

    def pictures(self) -> np.ndarray:
        """uint8 [B, size, size, 3], RGB."""
        pixels: np.ndarray = (self.images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return pixels

    def visible_areas(self) -> Tensor:
        """int64 [B, K]: the pixels that each object owns."""
        slots = range(1, self.areas.shape[1] + 1)
        return torch.stack([(self.slots == slot).sum((1, 2)) for slot in slots], dim=1)

    def visible_shares(self) -> Tensor:
        """float32 [B, K] in [0, 1]: the share of each object that nothing covers."""
        return self.visible_areas() / self.areas.clamp(min=1)


@torch.no_grad()
def render(batch: SceneBatch, size: int = 128, device: torch.device | str = "cpu") -> Rendered:
    """Paint every scene as a picture of ``size`` x ``size`` pixels.

    A pixel belongs to the front-most object whose alpha there is above one half.
    """
    device = torch.device(device)
    atlas, tints = _blurred(device), _tint_table(device)
    images = _backgrounds(torch.from_numpy(batch.backgrounds).to(device), size)
    masks = torch.zeros(len(batch), size, size, dtype=torch.uint8, device=device)
    slots = torch.zeros_like(masks)
    areas = torch.zeros(batch.labels.shape, dtype=torch.int64, device=device)
    levels = np.digitize(CELL / (np.maximum(batch.sizes, 1e-3) * size), REDUCTIONS)
    for slot, labels in enumerate(batch.labels.T):
        scenes = np.flatnonzero(labels >= 0)
        columns = (levels, batch.labels, batch.styles, batch.tints)
        chosen = [scenes, _affine(batch, scenes, slot), *(x[scenes, slot] for x in columns)]
        rows, affine, level, label, style, tint = (torch.from_numpy(x).to(device) for x in chosen)
        drawing = atlas[level, label, style].float() / 255
        layer = F.grid_sample(drawing, _grid(affine, size), align_corners=False)
        alpha = layer[:, 3:]
        images[rows] = _tinted(layer, tints[tint]) + (1 - alpha) * images[rows]
        solid = alpha[:, 0] > 0.5
        areas[rows, slot] = solid.sum((1, 2))
        masks[rows] = torch.where(solid, (label + 1).to(torch.uint8)[:, None, None], masks[rows])
        slots[rows] = torch.where(solid, slot + 1, slots[rows])
    return Rendered(images.clamp(0, 1), masks, slots, areas)


def _affine(batch: SceneBatch, scenes: np.ndarray, slot: int) -> np.ndarray:
    """float32 [n, 2, 3]: from picture to drawing, both (x, y) in [-1, 1]."""
    angle, size = batch.angles[scenes, slot], batch.sizes[scenes, slot]
    cosine, sine = np.cos(angle) / size, np.sin(angle) / size
    mirror = np.where(batch.flips[scenes, slot], -1, 1)
    turn = np.stack([mirror * cosine, mirror * sine, -sine, cosine], axis=-1).reshape(-1, 2, 2)
    shift = 1 - 2 * batch.centres[scenes, slot, ::-1, None]
    return np.concatenate([turn, turn @ shift], axis=-1).astype(np.float32)


def _grid(affine: Tensor, size: int) -> Tensor:
    """float32 [n, size, size, 2]: where in its drawing each pixel's centre lies.

    What F.affine_grid gives, without its matrix product: that would lose pixels' fractions where
    a training script allows TF32 or bfloat16.
    """
    axis = (2 * torch.arange(size, device=affine.device) + 1) / size - 1
    along_x, along_y, shift = affine[:, None, None].unbind(-1)  # each [n, 1, 1, 2]
    return along_x * axis[:, None] + along_y * axis[:, None, None] + shift


def _tinted(layer: Tensor, tint: Tensor) -> Tensor:
    """[n, 3, h, w]: a premultiplied RGBA layer's colours, tinted by rows [n, 3, 3] of the table."""
    colour, alpha = layer[:, :3], layer[:, 3:]
    red, green, blue = colour[:, :, None].unbind(1)
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    kept, slope, dark = tint[..., None, None].unbind(2)
    return torch.minimum(kept * colour + slope * brightness + dark * alpha, alpha)


def _backgrounds(parameters: Tensor, size: int) -> Tensor:
    """float32 [B, 3, size, size]: two slow waves blend three colours."""
    axis = (torch.arange(size, device=parameters.device) + 0.5) / size
    first, second, third = parameters[:, :9].reshape(-1, 3, 3, 1, 1).unbind(1)
    waves = parameters[:, 9:].reshape(-1, 2, 3, 1, 1)
    phase = waves[:, :, 0] * axis[:, None] + waves[:, :, 1] * axis
    share = 0.5 + 0.5 * torch.cos(2 * torch.pi * phase + waves[:, :, 2])
    ground = first + (second - first) * share[:, :1]
    return ground + (third - ground) * (0.7 * share[:, 1:])


@cache
def _blurred(device: torch.device) -> Tensor:
    """uint8 [blurs, classes, 2, 4, 128, 128]: the drawings, premultiplied, on a device."""
    drawings = sprites()
    copies = torch.empty(len(BLURS), *drawings.shape, dtype=torch.uint8)
    for index, drawing in enumerate(drawings):  # one class at a time keeps the memory small
        pixels = drawing.float() / 255
        pixels[:, :3] *= pixels[:, 3:]
        for level, width in enumerate(BLURS):
            copies[level, index] = (_blur(pixels, width) * 255).round().to(torch.uint8)
    return copies.to(device)


def _blur(pixels: Tensor, width: float) -> Tensor:
    """Gaussian blur of [n, 4, h, w] pictures, transparent outside."""
    if width == 0:
        return pixels
    reach = int(3 * width + 0.5)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / width) ** 2)
    kernel = (kernel / kernel.sum()).expand(4, 1, 1, -1)
    pixels = F.conv2d(pixels, kernel, padding=(0, reach), groups=4)
    return F.conv2d(pixels, kernel.transpose(2, 3), padding=(reach, 0), groups=4)


@cache
def _tint_table(device: torch.device) -> Tensor:
    """float32 [colours, 3 (RGB), 3]: share of the own colour, slope, dark end; 1, 0, 0 is natural.

    Brightness L becomes dark + L (light - dark): affine in colour, so exact when premultiplied.
    """
    tints = torch.tensor([TINTS[name] for name in COLOURS[1:]])
    dark, light = 0.3 * tints, 1.2 * tints + 0.25
    kept = torch.full_like(tints, NATURAL_SHARE)
    tinted = torch.stack([kept, (1 - kept) * (light - dark), (1 - kept) * dark], dim=-1)
    natural = torch.tensor([1.0, 0.0, 0.0]).expand(1, 3, 3)
    return torch.cat([natural, tinted]).to(device)
