"""Whether a picture may be one of the lab's scenes, or must be something else: a photograph."""

from __future__ import annotations

import numpy as np
from PIL import Image

from pixalign.pictures.reading import ImageLike, read_image

_SIDE = 96  # pixels at which pictures are compared
_FLAT = 4  # of 255: a change of slope that is none
_LEAST = 0.55  # of the pixels; the least of 300 val scenes at two sizes is .552


def smooth_share(image: ImageLike) -> float:
    """The share of pixels, at a small size, around which all colours change evenly or not at all.

    Scenes have smooth backgrounds; photographs hardly anywhere.
    """
    small = read_image(image).convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, dtype=np.float32)
    middle = pixels[1:-1, 1:-1]
    around = pixels[:-2, 1:-1] + pixels[2:, 1:-1] + pixels[1:-1, :-2] + pixels[1:-1, 2:]
    return float((np.abs(4 * middle - around).max(-1) < _FLAT).mean())


def like_a_photograph(image: ImageLike) -> bool:
    """Whether a picture is less smooth than any scene."""
    return smooth_share(image) < _LEAST
