"""Pictures as files, written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.checks import check_choice
from pixalign.core.files import write_bytes

# How files of each kind are written; JPEG at a third of a PNG's size or less.
OPTIONS: dict[str, dict[str, Any]] = {
    "png": {"optimize": True},
    "jpeg": {"quality": 88, "subsampling": 0, "optimize": True},
    "webp": {"quality": 85, "method": 2},  # a third of the usual time, for 4 % more bytes
}

# {ending: (format, options)}; frames that repeat stay frames of their own.
ANIMATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    ".webp": ("webp", {"quality": 85, "minimize_size": False, "allow_mixed": True}),
    ".gif": ("gif", {"disposal": 2}),
}
_FASTEST = 50  # frames a second: players show faster ones slowly


def encoded(image: Image.Image, kind: str = "png") -> bytes:
    """The bytes of a file of that kind, a key of `OPTIONS`."""
    file = io.BytesIO()
    image.save(file, format=kind, **OPTIONS[kind])
    return file.getvalue()


def write_png(path: Path, image: Image.Image) -> Path:
    """A PNG of any mode."""
    return write_bytes(path, encoded(image))


def write_animation(path: Path, frames: Sequence[Image.Image], fps: float) -> Path:
    """Pictures one after the other as an endless .webp or .gif."""
    check_choice("the ending of an animation", path.suffix.lower(), tuple(ANIMATIONS))
    if not 0 < fps <= _FASTEST:
        raise ValueError(f"fps is {fps!r}; allowed: above 0, at most {_FASTEST}")
    kind, options = ANIMATIONS[path.suffix.lower()]
    file = io.BytesIO()
    how = {"save_all": True, "append_images": list(frames[1:]), "loop": 0, **options}
    frames[0].save(file, format=kind, duration=round(1000 / fps), **how)
    return write_bytes(path, file.getvalue())


def mask_image(mask: np.ndarray, colours: np.ndarray) -> Image.Image:
    """An indexed-palette picture of a label mask [H, W]; 16-bit grey above 255 classes.

    ``colours`` uint8 [n, 3] are the palette's first entries.
    """
    if mask.dtype != np.uint8:
        return Image.fromarray(mask.astype(np.uint16))
    image = Image.frombytes("P", (mask.shape[1], mask.shape[0]), mask.tobytes())
    image.putpalette(colours[:256].astype(np.uint8).tobytes())
    return image
