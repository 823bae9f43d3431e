"""Contact sheets: many small images in one file to look at."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from pixalign.diffusion.sampling import to_pictures
from pixalign.pictures.grid import in_rows, picture_grid
from pixalign.pictures.saving import write_png


def write_sheet(images: Tensor, path: Path, columns: int) -> None:
    """Images [B, 3, h, w] in [0, 1] in rows of ``columns``, with a thin white grid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = to_pictures(images.detach().float().clamp(0, 1))
    write_png(path, picture_grid(in_rows(pictures, columns), gap=2))
