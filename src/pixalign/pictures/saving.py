"""Pictures as files, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from pixalign.core.files import write_bytes


def write_png(path: Path, image: Image.Image) -> Path:
    """A PNG of any mode."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return write_bytes(path, buffer.getvalue())


def mask_image(mask: np.ndarray, colours: np.ndarray) -> Image.Image:
    """An indexed-palette picture of a label mask [H, W]; 16-bit grey above 255 classes.

    ``colours`` uint8 [n, 3] are the palette's first entries.
    """
    if mask.dtype != np.uint8:
        return Image.fromarray(mask.astype(np.uint16))
    image = Image.frombytes("P", (mask.shape[1], mask.shape[0]), mask.tobytes())
    image.putpalette(colours[:256].astype(np.uint8).tobytes())
    return image
