"""One grid of pictures: rows of cells, with headings, titles and captions where they are given."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from pixalign.pictures.fonts import Font, Lettering

Cell = Image.Image | tuple[Image.Image, str]  # a picture, or one with the caption below it
TITLE = "#444444"


def picture_grid(
    rows: Sequence[Sequence[Cell]],
    *,
    headings: Sequence[str] = (),
    titles: Sequence[str] = (),
    side: int | None = None,
    gap: int = 6,
    text: int = 16,
    lines: int = 1,
    resample: Image.Resampling = Image.Resampling.LANCZOS,
) -> Image.Image:
    """Rows of pictures on white: under the columns' headings, each row under its title.

    Pictures are brought to ``side`` pixels on their longer side; None leaves them as they are.
    Columns are as wide as their widest picture (and at least ``side``), rows as high as their
    highest, and ``gap`` pixels lie around all. Texts have the size ``text``; captions take at most
    ``lines`` lines, and what is too long ends in "…".
    """
    cells = [[_fitted(cell, side, resample) for cell in row] for row in rows]
    captions = [caption for row in cells for _, caption in row]
    letters = Lettering.of([*headings, *titles, *captions], text)
    font, line = letters.font, round(1.5 * text)
    widths = [
        max(side or 1, *(row[place][0].width for row in cells if place < len(row)))
        for place in range(max(map(len, cells)))
    ]
    lefts = [gap + sum(widths[:place]) + place * gap for place in range(len(widths) + 1)]
    said = [
        [
            wrapped(letters.write(caption), widths[place], font, lines)
            for place, (_, caption) in enumerate(row)
        ]
        for row in cells
    ]
    head, over = line * bool(headings), line * bool(titles)
    heights = [max(picture.height for picture, _ in row) for row in cells]
    under = [line * max(map(len, row)) for row in said]
    height = gap + head + len(rows) * (over + gap) + sum(heights) + sum(under)
    sheet = Image.new("RGB", (lefts[-1], height), "white")
    draw = ImageDraw.Draw(sheet)

    def write(texts: Sequence[str], left: int, top: int, colour: str = "black") -> None:
        for number, words in enumerate(texts):
            middle = top + (number + 0.5) * line
            draw.text((left, middle), words, fill=colour, font=font, anchor="lm")

    for place, heading in enumerate(headings):
        write(wrapped(letters.write(heading), widths[place], font), lefts[place], gap // 2)
    top = gap + head
    for index, row in enumerate(cells):
        if titles:
            write(
                wrapped(letters.write(titles[index]), lefts[-1] - 2 * gap, font),
                gap,
                top - gap // 2,
                TITLE,
            )
        top += over
        for place, (picture, _) in enumerate(row):
            sheet.paste(picture, (lefts[place], top))
            write(said[index][place], lefts[place], top + picture.height)
        top += heights[index] + under[index] + gap
    return sheet


def in_rows(cells: Sequence[Cell], columns: int) -> list[Sequence[Cell]]:
    """Cells in rows of so many."""
    return [cells[first : first + columns] for first in range(0, len(cells), columns)]


def wrapped(text: str, width: int, font: Font, lines: int = 1) -> list[str]:
    """A text in at most so many lines of ``width`` pixels; what is too long ends in "…"."""
    filled: list[str] = []
    for word in text.split():
        longer = f"{filled[-1]} {word}" if filled else word
        if filled and (font.getlength(longer) <= width or len(filled) == lines):
            filled[-1] = longer
        else:
            filled.append(word)
    return [_shortened(line, width, font) for line in filled]


def _shortened(text: str, width: int, font: Font) -> str:
    kept, shown = len(text), text
    while kept and font.getlength(shown) > width:
        kept -= 1
        shown = text[:kept].rstrip(" .…") + "…"
    return shown


def _fitted(cell: Cell, side: int | None, resample: Image.Resampling) -> tuple[Image.Image, str]:
    """The picture in RGB at its size in the grid, and the caption."""
    picture, caption = cell if isinstance(cell, tuple) else (cell, "")
    picture = picture.convert("RGB")
    if side is not None:
        scale = side / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, resample)
    return picture, caption
