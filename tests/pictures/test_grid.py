"""The grid of pictures: everything is there, in its place, and nothing is too long."""

import numpy as np
import pytest
from PIL import Image, ImageFont

from pixalign.pictures.grid import in_rows, picture_grid, wrapped

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def plain(colour, width=20, height=20):
    return Image.new("RGB", (width, height), colour)


def box(sheet, colour):
    """(left, top, right, bottom) of the pixels of a colour; all of them have it."""
    there = (np.asarray(sheet) == colour).all(-1)
    rows, columns = np.flatnonzero(there.any(1)), np.flatnonzero(there.any(0))
    left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    assert there[top:bottom, left:right].all()
    return left, top, right, bottom


def dark(sheet, box):
    """Whether anything is written in a part of a sheet."""
    return np.asarray(sheet.crop(box).convert("L")).min() < 128


def test_pictures_as_they_are_in_rows_that_need_not_be_equal():
    wide = plain(BLUE, 30, 10)
    sheet = picture_grid([[plain(RED), plain(GREEN)], [wide]], gap=2)
    assert sheet.size == (2 + 30 + 2 + 20 + 2, 2 + 20 + 2 + 10 + 2)
    assert box(sheet, RED) == (2, 2, 22, 22)
    assert box(sheet, GREEN) == (34, 2, 54, 22)  # after the widest of the first column
    assert box(sheet, BLUE) == (2, 24, 32, 34)
    assert set(np.asarray(sheet).reshape(-1, 3).sum(1)) == {255, 3 * 255}


@pytest.mark.parametrize("size", [(20, 20), (40, 20), (10, 80), (1, 300)])
def test_the_longer_side_is_what_was_asked(size):
    sheet = picture_grid([[plain(RED, *size)]], side=60, gap=0, resample=Image.Resampling.NEAREST)
    left, top, right, bottom = box(sheet, RED)
    assert max(right - left, bottom - top) == 60
    scaled = [max(1, round(side * 60 / max(size))) for side in size]
    assert [right - left, bottom - top] == scaled


def test_any_mode_becomes_rgb():
    mask = Image.fromarray(np.ones((4, 4), dtype=np.uint8)).convert("P")
    assert picture_grid([[mask, Image.new("RGBA", (4, 4)), Image.new("1", (4, 4))]]).mode == "RGB"


def test_headings_titles_and_captions_stand_beside_their_pictures():
    rows = [[(plain(RED, 90, 90), "one"), plain(GREEN, 90, 90)], [(plain(BLUE, 90, 90), "two")]]
    sheet = picture_grid(rows, headings=("left", "right"), titles=("first", "second"), text=14)
    bare = picture_grid(
        [[cell[0] if isinstance(cell, tuple) else cell for cell in row] for row in rows]
    )
    left, top, right, bottom = box(sheet, RED)
    assert dark(sheet, (left, 0, right, top - 21))  # heading
    assert dark(sheet, (left, top - 21, right, top))  # title
    assert dark(sheet, (left, bottom, right, bottom + 21))  # caption
    over = box(sheet, GREEN)
    assert dark(sheet, (over[0], 0, over[2], top - 21))
    assert not dark(sheet, (over[0], over[3], over[2], over[3] + 21))
    lower = box(sheet, BLUE)
    assert dark(sheet, (lower[0], lower[1] - 21, lower[2], lower[1]))
    assert dark(sheet, (lower[0], lower[3], lower[2], lower[3] + 21))
    assert sheet.height == bare.height + 5 * 21  # a heading, two titles, two captions


def test_captions_of_several_lines_push_the_next_row_down():
    text = "a photo of a dog beside a rather long sofa"
    grids = [
        picture_grid([[(plain(RED, 90, 90), text)], [plain(BLUE, 90, 90)]], text=14, lines=lines)
        for lines in (1, 9)
    ]
    tops = [box(grid, BLUE)[1] for grid in grids]
    assert tops[0] - box(grids[0], RED)[3] == 21 + 6
    assert tops[1] - tops[0] >= 2 * 21


FONT = ImageFont.load_default(14)


def test_texts_are_wrapped_and_then_shortened():
    assert wrapped("dog", 100, FONT) == ["dog"]
    assert wrapped("", 100, FONT, 3) == []
    assert wrapped("a dog and a cat", 1000, FONT, 3) == ["a dog and a cat"]
    text = "a dog and a cat on a sofa. " * 4
    whole = wrapped(text, 120, FONT, 99)
    assert " ".join(whole).split() == text.split()
    two = wrapped(text, 120, FONT, 2)
    assert len(two) == 2
    assert two[0] == whole[0]
    assert two[1].endswith("…")
    for line in (*whole, *two, *wrapped("x" * 500, 120, FONT)):
        assert FONT.getlength(line) <= 120
    assert wrapped("wide", 1, FONT) == ["…"]  # and it ends


def test_rows_of_so_many():
    assert [len(row) for row in in_rows([plain(RED)] * 5, 2)] == [2, 2, 1]
