"""Letters on pictures: Pillow's own font, or one of the system's where that lacks a letter."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
# Found by Pillow in the system's folders, by the letters that they have.
_NAMES = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf",
    "Arial.ttf", "segoeui.ttf", "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "PingFang.ttc",
    "msyh.ttc", "NotoSansArabic-Regular.ttf", "NotoSansDevanagari-Regular.ttf",
)  # fmt: skip
_NO_LETTER = "\U0010ffff"


def font_for(texts: Iterable[str], size: int) -> Font:
    """A font of that size with the letters of some texts, or with the most of them."""
    letters = {letter for text in texts for letter in text if not letter.isspace()}
    best, lacking = ImageFont.load_default(size), _lacking(None, letters)
    for name in _NAMES if lacking else ():
        if (few := _lacking(name, letters)) < lacking:
            best, lacking = _opened(name, size) or best, few
        if not lacking:
            break
    return best


@cache
def _opened(name: str | None, size: int) -> Font | None:
    if name is None:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


def _lacking(name: str | None, letters: set[str]) -> int:
    """How many of some letters a font shows as the box of those that it lacks."""
    font = _opened(name, 24)
    if font is None:
        return len(letters) + 1
    box = bytes(font.getmask(_NO_LETTER))
    return sum(bytes(font.getmask(letter)) == box for letter in letters)
