"""The contact sheet of a drawn dataset."""

import numpy as np
import pytest
from PIL import Image

import tiny
from pixalign.bench.contact_sheet import COLUMNS, SHOWN, SIDE, contact_sheet
from pixalign.bench.contact_sheet import _why_not as why_not
from pixalign.pictures.drawing import palette


def dataset(folder, count, mask):
    """So many pictures of one mask, with a record each."""
    for part in ("images", "annotations"):
        (folder / part).mkdir()
    images = [f"generate_{number:04d}.png" for number in range(count)]
    for image in images:
        tiny.photo(96, 64).save(folder / "images" / image)
        name = image.replace(".png", "_gt.png")
        Image.fromarray(mask).save(folder / "annotations" / name)
    objects = [{"name": "dog", "annotated": True, "share": 0.2, "verdict": "sure"}]
    record = {"prompt": "a dog", "objects": objects}
    return images, {image.removesuffix(".png"): record for image in images}


@pytest.mark.parametrize("count", [1, 4, 40])
def test_pictures_beside_their_masks(tmp_path, count):
    mask = np.zeros((64, 96), np.uint8)
    mask[:20, :20], mask[40:, 50:] = 1, 255
    images, records = dataset(tmp_path, count, mask)
    sheet = contact_sheet(tmp_path, images, records, ["dog"])
    rows = -(-min(count, SHOWN) // COLUMNS)
    assert sheet.width >= 2 * SIDE * min(count, COLUMNS)
    assert rows * SIDE * 2 / 3 < sheet.height < rows * SIDE * 1.2
    pixels = np.asarray(sheet)
    second = pixels[8 : 8 + 128, 16 + SIDE : 16 + 2 * SIDE]  # the first mask, twice as large
    assert (second[90:, 110:] == 255).all()
    hue = second[3, 3].astype(float) - second[3, 100].mean()
    assert np.corrcoef(hue, palette(1)[1])[0, 1] > 0.9


def test_why_an_object_is_not_annotated():
    said = {"annotated": False, "share": 0.1, "verdict": "sure"}
    assert why_not(said) == "below a bound"
    assert why_not(said | {"verdict": None}) == "below a bound"
    assert why_not(said | {"verdict": "confused"}) == "confused"
    assert why_not(said | {"share": 0.0}) == "not found"
    assert why_not(said | {"annotated": True}) == ""
