"""Colours of heatmaps and masks."""

import colorsys

import numpy as np
import pytest
from PIL import Image

from pixalign.pictures.drawing import heat, overlay, palette, tinted
from pixalign.pictures.fonts import font_for


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


def test_letters_are_no_boxes_where_a_font_has_them():
    font = font_for(["café"], 20)
    if font.getname()[0] != "DejaVu Sans":
        pytest.skip("this system has other fonts, or none")
    shapes = {bytes(font.getmask(letter)) for letter in "cafe"}
    assert len(shapes) == 4
    assert bytes(font.getmask("é")) != bytes(font.getmask("\U0010ffff"))


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
