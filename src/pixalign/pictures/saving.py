"""Pictures as files, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import write_bytes

# How files of each kind are written; JPEG at a third of a PNG's size or less.
OPTIONS: dict[str, dict[str, Any]] = {
    "png": {"optimize": True},
    "jpeg": {"quality": 88, "subsampling": 0, "optimize": True},
    "webp": {"quality": 85},
}


def encoded(image: Image.Image, kind: str = "png") -> bytes:
    """The bytes of a file of that kind, a key of `OPTIONS`."""
    file = io.BytesIO()
    image.save(file, format=kind, **OPTIONS[kind])
    return file.getvalue()


def write_png(path: Path, image: Image.Image) -> Path:
    """A PNG of any mode."""
    return write_bytes(path, encoded(image))


def mask_image(mask: np.ndarray, colours: np.ndarray) -> Image.Image:
    """An indexed-palette picture of a label mask [H, W]; 16-bit grey above 255 classes.

    ``colours`` uint8 [n, 3] are the palette's first entries.
    """
    if mask.dtype != np.uint8:
        return Image.fromarray(mask.astype(np.uint16))
    image = Image.frombytes("P", (mask.shape[1], mask.shape[0]), mask.tobytes())
    image.putpalette(colours[:256].astype(np.uint8).tobytes())
    return image
