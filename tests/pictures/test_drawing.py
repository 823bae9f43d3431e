"""Colours of heatmaps and masks."""

import colorsys
import shutil

import numpy as np
import pytest
from PIL import Image

from pixalign.pictures import fonts
from pixalign.pictures.drawing import heat, overlay, palette, tinted
from pixalign.pictures.fonts import Lettering


def test_heat_runs_from_black_to_pale_and_gets_lighter():
    colours = heat(np.linspace(0, 1, 64)[None])
    assert colours.size == (64, 1)
    light = np.asarray(colours.convert("L"))[0].astype(int)
    assert (np.diff(light) >= 0).all()
    assert light[0] < 5
    assert light[-1] > 230


def test_tinted_shows_labels_in_their_colours():
    mask = np.zeros((8, 8), dtype=np.uint8)
    mask[2:6, 2:6] = 2
    pixels = np.asarray(tinted(Image.new("RGB", (8, 8), "black"), mask, opacity=1.0))
    assert (pixels[4, 4] == palette(2)[2]).all()
    assert (pixels[2, 3] == 255).all()
    assert len(set(pixels[0, 0].tolist())) == 1  # grey


def test_the_overlay_stands_above_its_legend():
    """Every class has a swatch below the picture, also where the legend takes several lines."""
    image, names = Image.new("RGB", (100, 480)), [f"class number {n}" for n in range(9)]
    mask = np.zeros((480, 100), dtype=np.uint8)
    mask[:, 50:] = 1
    pixels = np.asarray(overlay(image, mask, names, opacity=1.0))
    assert (pixels[:480, 60:90] == palette(9)[1]).all()
    below = {tuple(colour) for colour in pixels[480:].reshape(-1, 3).tolist()}
    assert {tuple(colour) for colour in palette(9)[1:].tolist()} < below


def test_a_legend_leaves_out_what_is_nowhere_and_grows_with_the_picture():
    mask, picture = np.zeros((40, 40), dtype=np.uint8), Image.new("RGB", (40, 40))
    mask[:9] = 2
    short = overlay(picture, mask, [None] * 20)
    assert short.height < overlay(picture, mask, ["some class"] * 20).height
    large = Image.new("RGB", (6000, 60))
    one = overlay(large, np.ones((60, 6000), dtype=np.uint8), ["dog"])
    assert one.height - large.height > 6000 / 36


def shapes(lettering, text):
    return {bytes(lettering.font.getmask(letter)) for letter in text if letter != " "}


BOX = "\U0010ffff"


def test_letters_are_no_boxes_where_a_font_has_them():
    letters = Lettering.of(["café"], 20)
    if letters.font.getname()[0] != "DejaVu Sans":
        pytest.skip("this system has other fonts, or none")
    assert len(shapes(letters, "cafe")) == 4
    assert letters.write("café") == "café"
    assert not shapes(letters, "é") & shapes(letters, BOX)


@pytest.mark.parametrize("text", ["日本語  12%", "собака", "كلب", "💥", "é\u0301", "a\x00b"])
def test_what_is_written_never_has_boxes(text):
    """Whatever fonts there are: a letter is shown, or its code point is."""
    letters = Lettering.of([text], 20)
    shown = letters.write(text)
    assert not shapes(letters, shown) & shapes(letters, BOX)
    for letter in text:
        assert letter in shown or f"U+{ord(letter):04X}" in shown


def test_letters_that_no_font_has_are_spelt(monkeypatch):
    """As on a machine without fonts; Pillow's own knows Latin letters alone."""
    monkeypatch.setattr(fonts, "_NAMES", ())
    monkeypatch.setattr(fonts, "_system_fonts", tuple)
    letters = Lettering.of(["日本語 dog 日本語日本語"], 20)
    assert letters.write("日本 dog  12%") == "U+65E5 U+672C dog  12%"
    assert letters.write("日本語日本語x") == "U+65E5 U+672C U+8A9E U+65E5…x"
    picture = overlay(Image.new("RGB", (40, 40)), np.ones((40, 40), dtype=np.uint8), ["日本 12%"])
    same = overlay(
        Image.new("RGB", (40, 40)), np.ones((40, 40), dtype=np.uint8), ["U+65E5 U+672C 12%"]
    )
    assert picture.tobytes() == same.tobytes()


def test_a_font_that_is_not_among_the_usual_names_is_found(monkeypatch, tmp_path):
    (dejavu,) = [path for path in fonts._system_fonts() if path.endswith("/DejaVuSans.ttf")] or [""]
    if not dejavu:
        pytest.skip("no font to copy")
    (tmp_path / "fonts" / "deep").mkdir(parents=True)
    shutil.copy(dejavu, tmp_path / "fonts" / "deep" / "Unheard-Of.ttf")
    (tmp_path / "fonts" / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "nothing"))
    monkeypatch.setattr(fonts, "_NAMES", ())
    fonts._system_fonts.cache_clear()
    try:
        letters = Lettering.of(["собака"], 20)
    finally:
        fonts._system_fonts.cache_clear()
    assert not letters.lacking
    assert letters.font.getname()[0] == "DejaVu Sans"


# How people without one kind of cone see linear RGB (Viénot, Brettel and Mollon, 1999).
WITHOUT = {
    "red": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "green": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


def test_the_first_colours_differ_for_colour_blind_people():
    """Seven of ours lie farther apart, as they see them, than the closest of seven even hues."""

    def closest(colours):
        values = np.asarray(colours, dtype=np.float64) / 255
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        distances = []
        for matrix in WITHOUT.values():
            seen = (linear @ np.array(matrix).T).clip(0, 1) ** (1 / 2.2)
            apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
            distances.append(apart[np.triu_indices(len(seen), 1)].min())
        return min(distances)

    even = [[255 * x for x in colorsys.hls_to_rgb(hue / 7, 0.58, 0.9)] for hue in range(7)]
    assert closest(palette(7)[1:]) > max(0.12, 1.5 * closest(even))
