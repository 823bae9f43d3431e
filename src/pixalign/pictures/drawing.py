"""Pictures for people: class colours, an overlay, its legend."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageColor, ImageDraw

from pixalign.pictures.fonts import Lettering
from pixalign.pictures.grid import picture_grid

# Heatmap colours at equal distances from 0 to 1; lightness rises all the way.
HEAT = ("#000004", "#280b53", "#65156e", "#9f2a63", "#d44842", "#f57d15", "#fac127", "#fcffa4")

# Okabe and Ito's, which people with any colour vision tell apart.
_FIRST = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442")
# Beyond them rings of twelve hues, each with its own (lightness, saturation).
_RINGS = ((0.58, 0.9), (0.38, 0.8), (0.76, 0.85), (0.5, 0.45))


def palette(count: int) -> np.ndarray:
    """uint8 [count + 1, 3]: black for the background, then colours that differ clearly.

    The first seven differ for colour-blind people too.
    """
    colours = [(0, 0, 0), *map(ImageColor.getrgb, _FIRST)]
    for index in range(count - len(_FIRST)):
        ring, place = divmod(index, 12)
        lightness, saturation = _RINGS[ring % len(_RINGS)]
        hue = 0.01 + place * 5 % 12 / 12 + ring / 24  # neighbours in the list lie far apart
        red, green, blue = colorsys.hls_to_rgb(hue % 1, lightness, saturation)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return np.array(colours[: count + 1], dtype=np.uint8)


def hex_palette(count: int) -> list[str]:
    """The colours of ``count`` classes as a page writes them."""
    return ["#" + bytes(colour).hex() for colour in palette(count)[1:]]


def heat(heatmap: np.ndarray) -> Image.Image:
    """A heatmap [H, W] in [0, 1] in colours: black is 0, then violet, red, orange, pale yellow."""
    stops = np.array([ImageColor.getrgb(colour) for colour in HEAT], dtype=np.float32)
    places = np.linspace(0, 1, len(stops))
    channels = [np.interp(heatmap, places, stops[:, channel]) for channel in range(3)]
    return Image.fromarray(np.round(np.stack(channels, axis=-1)).astype(np.uint8))


def tinted(image: Image.Image, mask: np.ndarray, opacity: float = 0.7) -> Image.Image:
    """The image in grey with each label's pixels in its colour of the palette, outlined in white.

    ``mask`` [H, W] holds 0 for background; the picture keeps its size.
    """
    grey = 0.35 * 255 + 0.65 * np.asarray(image.convert("L"), dtype=np.float32)[..., None]
    blended = _blended(grey, palette(int(mask.max()))[mask], mask, opacity)
    blended[outline(mask)] = 255
    return Image.fromarray(np.round(blended).astype(np.uint8))


def overlay(
    image: Image.Image, mask: np.ndarray, legend: Sequence[str | None], opacity: float = 0.55
) -> Image.Image:
    """The image with each class's pixels tinted and outlined, above a legend.

    ``mask`` [H, W] holds 0 for background and i for ``legend[i - 1]``, which is None for a class
    that is not worth a line; their number is told.
    """
    colours = palette(len(legend))
    pixels, tint = np.asarray(image, dtype=np.float32), colours[mask].astype(np.float32)
    edge = (outline(mask) & (mask > 0))[..., None]
    blended = np.where(edge, tint, _blended(pixels, tint, mask, opacity))
    picture = Image.fromarray(np.round(blended).astype(np.uint8))
    # Small pictures are enlarged so that the legend can be read beside them.
    enlarge = max(1, round(480 / max(picture.size)))
    size = (picture.width * enlarge, picture.height * enlarge)
    picture = picture.resize(size, Image.Resampling.NEAREST)
    text_size = max(14, round(max(picture.size) / 36))
    width = max(picture.width, 24 * text_size)
    lines = [(text, colour) for text, colour in zip(legend, colours[1:], strict=True) if text]
    if hidden := len(legend) - len(lines):
        lines.append((f"{hidden} more  0%", np.full(3, 255, dtype=np.uint8)))
    return picture_grid([[picture], [_legend(lines, width, text_size)]], gap=0)


def _blended(pixels: np.ndarray, tint: np.ndarray, mask: np.ndarray, opacity: float) -> np.ndarray:
    """Pixels with so much of the tint where the mask is not background."""
    share = np.where(mask[..., None] > 0, opacity, 0.0)
    blended: np.ndarray = pixels * (1 - share) + tint * share
    return blended


def outline(mask: np.ndarray) -> np.ndarray:
    """bool [H, W]: pixels whose label differs from the one above or to the left."""
    edges = np.zeros(mask.shape, dtype=bool)
    edges[1:] |= mask[1:] != mask[:-1]
    edges[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    return edges


def _legend(lines: Sequence[tuple[str, np.ndarray]], width: int, text_size: int) -> Image.Image:
    """A swatch of each colour beside its text, in lines of at most ``width`` pixels."""
    letters = Lettering.of([text for text, _ in lines], text_size)
    lines = [(letters.write(text), colour) for text, colour in lines]
    font, gap, swatch = letters.font, text_size // 2, text_size
    corners: list[tuple[int, int]] = []
    x, y = gap, gap
    for text, _ in lines:
        needed = swatch + gap + int(font.getlength(text)) + 2 * gap
        if x > gap and x + needed > width:
            x, y = gap, y + swatch + gap
        corners.append((x, y))
        x += needed
    picture = Image.new("RGB", (width, y + swatch + 2 * gap), "white")
    draw = ImageDraw.Draw(picture)
    for (left, top), (text, colour) in zip(corners, lines, strict=True):
        box = (left, top, left + swatch, top + swatch)
        draw.rectangle(box, fill=tuple(colour.tolist()), outline="black")
        place = (left + swatch + gap, top + swatch / 2)
        draw.text(place, text, fill="black", font=font, anchor="lm")
    return picture
