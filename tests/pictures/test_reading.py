"""Pictures as people have them."""

import contextlib
import math
import os
import random
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tiny
from pixalign.pictures.reading import RATIOS, model_size, read_image, to_pixels


@pytest.fixture(scope="module")
def rgb():
    return tiny.photo(60, 40)


def saved(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def test_paths_images_and_arrays_agree(tmp_path, rgb):
    path = saved(tmp_path, rgb, "a.png")
    for given_ in (path, str(path), rgb, np.asarray(rgb), np.asarray(rgb) / 255):
        assert np.array_equal(np.asarray(read_image(given_)), np.asarray(rgb))


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    ramp = np.linspace(0, 65535, 40 * 60).reshape(40, 60).astype(np.uint16)
    path = saved(tmp_path, Image.fromarray(ramp), "deep.png")
    for given_ in (path, ramp):
        found = np.asarray(read_image(given_))
        assert found.shape == (40, 60, 3)
        assert np.abs(found[..., 0].astype(float) - ramp / 257).max() <= 1


def test_integers_of_32_bits_may_hold_8():
    ramp = np.arange(256, dtype=np.int32).reshape(16, 16)
    for scale in (1, 257):
        found = read_image(Image.fromarray(ramp * scale, mode="I"))
        assert np.array_equal(np.asarray(found)[..., 0], ramp)


@given(
    st.randoms(use_true_random=False), st.sampled_from(["jpg", "png", "gif", "tif", "webp", "avif"])
)
def test_damaged_pictures_are_read_or_refused(tmp_path_factory, random, suffix):
    path = tmp_path_factory.getbasetemp() / f"damaged.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = 6
    tiny.photo(24, 16).save(path, **({} if suffix == "gif" else {"exif": exif}))
    data = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 8)):
        data[random.randrange(len(data))] = random.randrange(256)
    path.write_bytes(data[: random.randint(1, len(data))])
    with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):
        assert read_image(path).mode == "RGB"


def test_other_modes_become_upright_rgb(tmp_path, rgb):
    cmyk = read_image(saved(tmp_path, rgb.convert("CMYK"), "a.jpg", quality=95))
    assert np.abs(np.asarray(cmyk).astype(float) - np.asarray(rgb)).mean() < 6
    assert read_image(saved(tmp_path, rgb.convert("P"), "p.gif")).mode == "RGB"
    assert read_image(rgb.convert("1")).mode == "RGB"
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    assert read_image(saved(tmp_path, rgb, "turned.jpg", exif=exif)).size == (40, 60)
    rgba = rgb.convert("RGBA")
    rgba.putalpha(Image.new("L", rgb.size, 0))
    for clear in (saved(tmp_path, rgba, "a.png"), Image.new("LA", (20, 20), (0, 0))):
        assert (np.asarray(read_image(clear)) == 255).all()


def test_tiny_and_huge_are_refused(tmp_path):
    with pytest.raises(ValueError, match="1x1 pixels; each side needs at least 8"):
        read_image(Image.new("RGB", (1, 1)))
    with pytest.raises(ValueError, match="12000x9000 pixels; at most 100 million"):
        read_image(Image.new("1", (12000, 9000)))
    bomb = saved(tmp_path, Image.new("1", (20000, 10000)), "bomb.png")
    with pytest.raises(ValueError, match=r"bomb\.png' is too large"):
        read_image(bomb)


def test_files_that_are_no_pictures(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nope\.png' is missing"):
        read_image(tmp_path / "nope.png")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        read_image(tmp_path)
    (tmp_path / "notes.txt").write_text("not a picture")
    with pytest.raises(ValueError, match=r"notes\.txt' is no image of a known format"):
        read_image(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="is a URL; download"):
        read_image("https://example.org/a.png")
    tiny.photo(20, 20).save(tmp_path / "script.eps")
    drawn = (tmp_path / "script.eps").rename(tmp_path / "script.png")
    with pytest.raises(ValueError, match=r"script\.png' is no image of a known format"):
        read_image(drawn)  # which would start a program
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(FileNotFoundError, match=r"pipe\.png' is no file"):
        read_image(tmp_path / "pipe.png")
    for name in ("cut.jpeg", "cut.png"):
        path = saved(tmp_path, tiny.photo(200, 200), name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ValueError, match=rf"{name}' is damaged or cut short"):
            read_image(path)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((20, 20, 2), np.uint8),
        np.zeros((20,), np.uint8),
        np.zeros((0, 20, 3), np.uint8),
        np.zeros((20, 20, 3), np.int64),
        np.full((20, 20, 3), 2.0),
        np.full((20, 20, 3), np.nan),
    ],
)
def test_arrays_of_other_kinds_are_refused(array):
    with pytest.raises(ValueError, match="array of shape"):
        read_image(array)


def test_grey_arrays():
    assert read_image(np.zeros((20, 30), np.uint8)).size == (30, 20)
    assert read_image(np.ones((20, 30, 1), bool)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("side", "multiple", "expected"),
    [(512, 64, (256, 896)), (1024, 32, (576, 1824)), (1024, 16, (576, 1824))],
)
def test_a_wide_picture_keeps_its_shape(side, multiple, expected):
    assert model_size((200, 640), "keep", (side, side), multiple, 8192) == expected
    assert model_size((200, 640), "square", (side, side), multiple, 8192) == (side, side)


@given(st.integers(8, 5000), st.integers(8, 5000), st.sampled_from([16, 32, 64]))
def test_kept_sizes_fit_the_network(height, width, multiple):
    found = model_size((height, width), "keep", (512, 512), multiple, 2048)
    assert all(side % multiple == 0 and multiple <= side <= 2048 for side in found)
    if max(height, width) / min(height, width) < 3:
        area = found[0] * found[1] / 512**2
        assert 0.7 < area < 1.35
        assert 0.7 < (found[0] / found[1]) / (height / width) < 1.45


sides = st.integers(8, 5000)


@pytest.mark.parametrize(("native", "multiple"), [(128, 32), (512, 64), (1024, 16)])
def test_few_shapes_are_few(native, multiple):
    rng = random.Random(0)
    pictures = [(rng.randint(8, 5000), rng.randint(8, 5000)) for _ in range(1000)]

    def found(**few):
        return {
            model_size(p, "keep", (native, native), multiple, 8 * native, **few) for p in pictures
        }

    assert len(found(few=True)) <= len(RATIOS)
    assert len(found()) > len(found(few=True)) > 1
    assert found() == found(few=False)


@given(sides, sides, st.sampled_from([16, 32, 64]))
def test_few_shapes_fit_the_network(height, width, multiple):
    found = model_size((height, width), "keep", (512, 512), multiple, 2048, few=True)
    assert all(side % multiple == 0 and multiple <= side <= 2048 for side in found)
    assert 0.85 < found[0] * found[1] / 512**2 < 1.15
    assert model_size((height, width), "square", (512, 512), multiple, 2048, few=True) == (512, 512)
    assert model_size((width, height), "keep", (512, 512), multiple, 2048, few=True) == found[::-1]


@given(st.floats(1 / 3, 3))
def test_few_shapes_are_near_the_pictures(ratio):
    """Between 1:3 and 3:1; the widest gap, from 2 to 3, is halved in logarithms."""
    picture = (round(4000 * math.sqrt(ratio)), round(4000 / math.sqrt(ratio)))
    height, width = model_size(picture, "keep", (4096, 4096), 1, 32768, few=True)
    assert min(abs(math.log(height / width / known)) for known in RATIOS) < 2e-3
    error = abs(math.log(height / width / ratio))
    assert error <= math.log(3 / 2) / 2 + 2e-3
    assert error <= min(abs(math.log(known / ratio)) for known in RATIOS) + 3e-3


@given(sides, st.sampled_from([(512, 64), (1024, 16), (128, 32)]))
def test_square_pictures_are_native_even_with_few_shapes(side, model):
    native, multiple = model
    found = model_size((side, side), "keep", (native, native), multiple, 8 * native, few=True)
    assert found == (native, native)


def test_known_shapes_come_in_both_directions():
    assert sorted(1 / ratio for ratio in RATIOS) == pytest.approx(list(RATIOS))
    for ratio, known in {2.4: 2, 2.47: 3, 1.16: 4 / 3, 1.15: 1}.items():  # sqrt(6), sqrt(4 / 3)
        picture = (round(1000 * ratio), 1000)
        height, width = model_size(picture, "keep", (4096, 4096), 1, 32768, few=True)
        assert height / width == pytest.approx(known, rel=2e-3)
        turned = model_size(picture[::-1], "keep", (4096, 4096), 1, 32768, few=True)
        assert turned == (width, height)


def test_pixels_are_in_minus_one_to_one(rgb):
    pixels = to_pixels(rgb, (16, 24))
    assert pixels.shape == (1, 3, 16, 24)
    assert pixels.min() >= -1
    assert pixels.max() <= 1
    white = to_pixels(Image.new("RGB", (9, 9), "white"), (8, 8))
    assert (white == 1).all()
