"""Pictures for people: class colours, an overlay, its legend."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

# Heatmap colours at equal distances from 0 to 1; lightness rises all the way.
_HEAT = ("#000004", "#280b53", "#65156e", "#9f2a63", "#d44842", "#f57d15", "#fac127", "#fcffa4")

# Rings of twelve hues, each with its own (lightness, saturation).
_RINGS = ((0.58, 0.9), (0.38, 0.8), (0.76, 0.85), (0.5, 0.45))


def palette(count: int) -> np.ndarray:
    """uint8 [count + 1, 3]: black for the background, then colours that differ clearly."""
    colours = [(0.0, 0.0, 0.0)]
    for index in range(count):
        ring, place = divmod(index, 12)
        lightness, saturation = _RINGS[ring % len(_RINGS)]
        hue = 0.01 + place * 5 % 12 / 12 + ring / 24  # neighbours in the list lie far apart
        colours.append(colorsys.hls_to_rgb(hue % 1, lightness, saturation))
    return np.round(np.array(colours) * 255).astype(np.uint8)


def heat(heatmap: np.ndarray) -> Image.Image:
    """A heatmap [H, W] in [0, 1] in colours: black is 0, then violet, red, orange, pale yellow."""
    stops = np.array([ImageColor.getrgb(colour) for colour in _HEAT], dtype=np.float32)
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
    image: Image.Image, mask: np.ndarray, legend: Sequence[str], opacity: float = 0.55
) -> Image.Image:
    """The image with each class's pixels tinted and outlined, above a legend.

    ``mask`` [H, W] holds 0 for background and i for ``legend[i - 1]``.
    """
    colours = palette(len(legend))
    pixels = np.asarray(image, dtype=np.float32)
    tint = colours[mask].astype(np.float32)
    blended = _blended(pixels, tint, mask, opacity)
    edge = (outline(mask) & (mask > 0))[..., None]
    blended = np.where(edge, tint, blended)
    picture = Image.fromarray(np.round(blended).astype(np.uint8))
    # Small pictures are enlarged so that the legend can be read beside them.
    enlarge = max(1, round(480 / max(picture.size)))
    picture = picture.resize(
        (picture.width * enlarge, picture.height * enlarge), Image.Resampling.NEAREST
    )
    return _above_legend(picture, legend, colours)


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


def _above_legend(picture: Image.Image, legend: Sequence[str], colours: np.ndarray) -> Image.Image:
    text_size = int(np.clip(max(picture.size) / 36, 14, 48))
    font = ImageFont.load_default(text_size)
    gap, swatch = text_size // 2, text_size
    width = max(picture.width, 24 * text_size)
    places: list[tuple[int, int]] = []
    x, y = gap, gap
    for text in legend:
        needed = swatch + gap + int(font.getlength(text)) + 2 * gap
        if x > gap and x + needed > width:
            x, y = gap, y + swatch + gap
        places.append((x, y))
        x += needed
    sheet = Image.new("RGB", (width, picture.height + y + swatch + 2 * gap), "white")
    sheet.paste(picture, ((width - picture.width) // 2, 0))
    draw = ImageDraw.Draw(sheet)
    for (left, top), text, colour in zip(places, legend, colours[1:], strict=True):
        top += picture.height
        box = (left, top, left + swatch, top + swatch)
        draw.rectangle(box, fill=tuple(int(part) for part in colour), outline="black")
        draw.text(
            (left + swatch + gap, top + swatch / 2), text, fill="black", font=font, anchor="lm"
        )
    return sheet


def titled_rows(
    rows: Sequence[Sequence[Image.Image]],
    columns: Sequence[str],
    titles: Sequence[str] = (),
    side: int = 256,
) -> Image.Image:
    """Rows of pictures under the columns' headings, each row under its title if it has one.

    Pictures are brought to ``side`` pixels on their longer side.
    """
    font, gap = ImageFont.load_default(16), 6
    head, line = 26, 24 if titles else 0
    cells = [[_fitted(picture, side) for picture in row] for row in rows]
    width = gap + (side + gap) * max(len(row) for row in rows)
    heights = [line + gap + max(cell.height for cell in row) for row in cells]
    sheet = Image.new("RGB", (width, head + sum(heights) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for place, text in enumerate(columns):
        draw.text((gap + place * (side + gap), 4), text, fill="black", font=font)
    top = head
    for index, row in enumerate(cells):
        if titles:
            draw.text((gap, top + 2), _shortened(titles[index], width, font), "#444444", font=font)
        for place, cell in enumerate(row):
            sheet.paste(cell, (gap + place * (side + gap), top + line))
        top += heights[index]
    return sheet


def _fitted(picture: Image.Image, side: int) -> Image.Image:
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _shortened(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    while font.getlength(text) > width - 12:
        text = text[:-2].rstrip(" .…") + "…"
    return text


def picture_rows(
    shown: Mapping[str, Sequence[Image.Image]], columns: Sequence[str], titles: Sequence[str]
) -> bytes:
    """A WebP of small pictures: columns by their names in ``shown``, each row under its title."""
    rows = list(zip(*(shown[column] for column in columns), strict=True))
    file = io.BytesIO()
    titled_rows(rows, columns, titles, side=128).save(file, format="WEBP", quality=85)
    return file.getvalue()
