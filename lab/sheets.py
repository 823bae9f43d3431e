"""Contact sheets: many small images in one file to look at."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor


def write_sheet(images: Tensor, path: Path, columns: int) -> None:
    """Images [B, 3, h, w] in [0, 1] in rows of ``columns``, with a thin white grid."""
    images = torch.nn.functional.pad(images.detach().float().cpu(), (0, 2, 0, 2), value=1.0)
    missing = -len(images) % columns
    images = torch.cat([images, images.new_ones(missing, *images.shape[1:])])
    _, channels, height, width = images.shape
    grid = images.reshape(-1, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    pixels = (grid.reshape(-1, columns * width, channels).clamp(0, 1) * 255).round().byte()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).save(path)
