"""Letters on pictures: Pillow's own font, or one of the system's where that lacks a letter.

Letters that no font has are written as their code points, U+65E5, and never as boxes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
# Tried first; Pillow finds them in the system's folders.
_NAMES = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf",
    "Arial.ttf", "segoeui.ttf", "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "PingFang.ttc",
    "msyh.ttc", "NotoSansArabic-Regular.ttf", "NotoSansDevanagari-Regular.ttf",
)  # fmt: skip
_SUFFIXES = (".ttf", ".otf", ".ttc")
_MOST = 300  # further files that are opened
_NO_LETTER = "\U0010ffff"
_SPELT = 4  # code points of a run of letters; what follows is left out


@dataclass(frozen=True)
class Lettering:
    """A font, and the letters asked for that it lacks."""

    font: Font
    lacking: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> Lettering:
        """The font of that size with all letters of some texts, or with the most of them."""
        letters = frozenset(c for text in texts for c in text if not c.isspace())
        best, lacking = ImageFont.load_default(size), _lacking(None, letters)
        for name in (*_NAMES, *_system_fonts()) if lacking else ():
            fewer = _lacking(name, letters)
            if len(fewer) < len(lacking) and (font := _opened(name, size)) is not None:
                best, lacking = font, fewer
            if not lacking:
                break
        return cls(best, lacking)

    def write(self, text: str) -> str:
        """The text as the font can show it."""
        shown, run = "", 0
        for letter in text:
            run = run + 1 if letter in self.lacking else 0
            if not run:
                shown += letter
            elif run <= _SPELT:
                shown += f"{' ' if run > 1 else ''}U+{ord(letter):04X}"
            elif run == _SPELT + 1:
                shown += "…"
        return shown


@cache
def _opened(name: str | None, size: int) -> Font | None:
    if name is None:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


@cache
def _lacking(name: str | None, letters: frozenset[str]) -> frozenset[str]:
    """Those of some letters that a font shows as the box of what it lacks."""
    font = _opened(name, 24)
    if font is None:
        return letters
    box = bytes(font.getmask(_NO_LETTER))
    return frozenset(letter for letter in letters if bytes(font.getmask(letter)) == box)


@cache
def _system_fonts() -> tuple[str, ...]:
    """Further font files of the system, the same ones in the same order at each call."""
    return tuple(islice(_font_files(), _MOST))


def _font_files() -> Iterator[str]:
    for folder in _font_folders():
        for place, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(files):
                if name.lower().endswith(_SUFFIXES):
                    yield os.path.join(place, name)


def _font_folders() -> list[Path]:
    """Where Windows, macOS and others keep fonts."""
    home = Path.home()
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    shared = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":")
    own = os.environ.get("XDG_DATA_HOME", str(home / ".local/share"))
    return [Path(folder) / "fonts" for folder in (own, *shared) if folder]
