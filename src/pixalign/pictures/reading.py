"""Any picture in, RGB out, and the size at which a model sees it."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pixalign.core.values import Size

ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
# What is opened, by Pillow's names: no format that runs a program or reads other files.
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "TGA")
SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm",
    ".jp2", ".mpo", ".tga",
)  # fmt: skip
MIN_SIDE = 8
MAX_PIXELS = 100_000_000
# What Pillow raises for damaged files: some of its decoders and its EXIF reader say it oddly.
DAMAGED = (
    OSError, SyntaxError, ValueError, RuntimeError, EOFError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip


def read_image(image: ImageLike, most: int = MAX_PIXELS) -> Image.Image:
    """An upright RGB picture from a path, a file's bytes, a PIL image or an array.

    More than ``most`` pixels are refused before they are decoded. Arrays are [H, W], [H, W, 1],
    [H, W, 3] or [H, W, 4]; uint8, uint16, bool, or floats in [0, 1]. Orientation tags are applied,
    16-bit values scaled to 8, CMYK converted, and transparent pixels laid on white.
    """
    if isinstance(image, np.ndarray):
        opened, name = _from_array(image), "the array"
    elif isinstance(image, Image.Image):
        opened, name = image, "the image"
    elif isinstance(image, str | os.PathLike):
        if re.match(r"[a-z]+:/", os.fspath(image)):
            raise ValueError(f"image {image!r} is a URL; download the picture and name the file")
        opened, name = _open(Path(image)), f"{os.fspath(image)!r}"
    elif isinstance(image, bytes):
        opened, name = _decoded(io.BytesIO(image), "the file"), "the file"
    else:
        raise ValueError(
            f"image is a {type(image).__name__}; "
            "allowed: a path, a file's bytes, a PIL image or a NumPy array"
        )
    width, height = opened.size
    if min(width, height) < MIN_SIDE:
        raise ValueError(f"{name} is {width}x{height} pixels; each side needs at least {MIN_SIDE}")
    if width * height > most:
        raise ValueError(f"{name} is {width}x{height} pixels; {_at_most(most)}")
    try:
        return _to_rgb(ImageOps.exif_transpose(opened))
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged or cut short: {error}") from error


def upright_size(path: Path) -> Size:
    """The (height, width) that `read_image` will give a file, by its head alone."""
    with _open(path) as opened:
        try:
            turned = opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5
        except DAMAGED as error:
            raise ValueError(f"{str(path)!r} is damaged or cut short: {error}") from error
        width, height = opened.size
    return (width, height) if turned else (height, width)


def _open(path: Path) -> Image.Image:
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file" if path.exists() else "missing"
        raise FileNotFoundError(f"image {str(path)!r} is {what}")
    return _decoded(path, repr(str(path)))


def _decoded(file: Path | io.BytesIO, name: str) -> Image.Image:
    """A picture whose pixels are still to be read."""
    try:
        return open_image(file)
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise ValueError(f"{name} is no image of a known format: {known}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{name} is too large; {_at_most(MAX_PIXELS)}") from error
    except PermissionError:
        raise
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged or cut short: {error}") from error


def _at_most(pixels: int) -> str:
    return f"at most {pixels // 10**6} million pixels are allowed, make it smaller first"


def open_image(file: Path | io.BytesIO) -> Image.Image:
    """A file of a known format as Pillow opens it, which reads no more than its header."""
    if isinstance(file, Path) and not file.is_file():  # a pipe would be waited for
        raise FileNotFoundError(f"{str(file)!r} is {'no file' if file.exists() else 'missing'}")
    return Image.open(file, formats=FORMATS)


def _from_array(array: np.ndarray) -> Image.Image:
    problem = f"array of shape {array.shape} and type {array.dtype}"
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or not array.size:
        raise ValueError(f"{problem}; allowed: [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]")
    if array.dtype == np.bool_:
        array = array * np.uint8(255)
    elif array.dtype == np.uint16:
        array = np.round(array.astype(np.float32) / 257).astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ValueError(f"{problem} has values outside [0, 1]")
        array = np.round(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ValueError(f"{problem}; allowed types: uint8, uint16, bool, or floats in [0, 1]")
    return Image.fromarray(np.ascontiguousarray(array))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow would clip 16-bit grey at 255 instead of scaling it.
        values = np.asarray(image).astype(np.float64)
        top = max(1.0, float(values.max()))
        if image.mode.startswith("I"):  # 32 bits may hold 8 or 16
            top = 255 if image.mode == "I" and top <= 255 else 65535
        image = Image.fromarray(np.round(values.clip(0, top) / top * 255).astype(np.uint8))
    elif image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


# Shapes, height over width, to which pictures are rounded where each shape costs a compilation.
RATIOS = (1 / 3, 1 / 2, 9 / 16, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 16 / 9, 2.0, 3.0)


def model_size(
    size: Size, resize: str, native: Size, multiple: int, largest: int, *, few: bool = False
) -> Size:
    """The (height, width) at which a model sees a picture of that (height, width).

    "square" is the native size, whatever the picture. "keep" keeps the picture's shape at
    about the native area, sides rounded to ``multiple`` and no longer than ``largest``; with
    ``few`` the shape is first rounded to the nearest of `RATIOS`, also beyond 3 to 1.
    """
    if resize == "square":
        return native
    if few:
        shape = math.log(size[0] / size[1])
        ratio = min(RATIOS, key=lambda known: abs(math.log(known) - shape))
        size = (round(1000 * math.sqrt(ratio)), round(1000 / math.sqrt(ratio)))
    scale = math.sqrt(native[0] * native[1] / (size[0] * size[1]))
    steps = [max(1, round(side * scale / multiple)) for side in size]
    height, width = (min(step * multiple, largest // multiple * multiple) for step in steps)
    return height, width


def to_pixels(image: Image.Image, size: Size) -> Tensor:
    """float32 [1, 3, height, width] in [-1, 1], resized bilinearly."""
    resized = image.resize(size[::-1], Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.array(resized, dtype=np.float32))
    return values.permute(2, 0, 1)[None] / 127.5 - 1
