"""Dataset layouts: every label in its place, every broken tree named."""

import os
import pickle
import re

import numpy as np
import pytest
from PIL import Image

import trees
from pixalign.bench.datasets import DATASETS, check, find_datasets, near_misses, open_dataset
from pixalign.bench.datasets.layouts import colour_map
from pixalign.bench.datasets.sample import class_list
from trees import HIGH, WIDE, built, labels, lines, mask, photo, refused

FILES = tuple(trees.BUILDERS)


def unreadable(dataset, message):
    """Its second sample is refused with a message, and so is the dataset in a check."""
    with pytest.raises(ValueError, match=message):
        dataset[1]
    (problem,) = check(dataset).problems
    assert re.search(message, problem)


# All layouts


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("voc", 20, "plane", "monitor"),
        ("context", 59, "airplane", "wood"),
        ("coco", 80, "person", "toothbrush"),
        ("ade20k", 150, "wall", "flag"),
        ("aep", 38, "backpack", "strawberry"),
    ],
)
def test_class_lists(name, count, first, last):
    classes = class_list(name)
    assert len(classes) == len(set(classes)) == count
    assert (classes[0], classes[-1]) == (first, last)
    assert all(text == " ".join(text.split()).lower() for text in classes)


@pytest.mark.parametrize("name", FILES)
def test_samples_are_pictures_with_their_truth(name, tmp_path):
    _, dataset = built(name, tmp_path)
    assert (dataset.name, len(dataset)) == (name, 2)
    assert dataset.split == DATASETS[name].splits[0]
    assert dataset.counts() is None
    samples = list(dataset)
    assert tuple(sample.key for sample in samples) == dataset.keys
    for index, sample in enumerate(samples):
        assert sample.image.mode == "RGB"
        assert sample.image.size == (WIDE, HIGH)
        assert sample.truth.dtype == np.uint8
        assert np.array_equal(sample.truth, dataset.truth(index))
        assert sample.group == ""
    assert np.array_equal(dataset[-1].truth, samples[-1].truth)
    copy = pickle.loads(pickle.dumps(dataset))  # as another process gets it
    assert np.array_equal(copy[0].truth, dataset[0].truth)


@pytest.mark.parametrize("name", FILES)
def test_limit_takes_the_first_keys_and_a_digest_tells_pictures_apart(name, tmp_path):
    _, whole = built(name, tmp_path / "one")
    _, same = built(name, tmp_path / "same")
    one = open_dataset(name, str(tmp_path / "one"), limit=1)
    assert one.keys == whole.keys[:1]
    assert one[-1].key == whole.keys[0]
    assert np.array_equal(one.truth(-1), whole.truth(0))
    assert len(open_dataset(name, tmp_path / "one", limit=9)) == 2
    refused(ValueError, "limit is 0; allowed: 1 or more", name, tmp_path / "one", limit=0)
    assert one.digest() != whole.digest() == same.digest()
    path = whole.images[whole.keys[0]]
    path.write_bytes(path.read_bytes() + b"x")
    assert whole.digest() != same.digest()


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_root_is_explained(name, tmp_path):
    root = tmp_path / "data" / "here"
    home = trees.BUILDERS[name](root)
    nowhere = r"root '.*nowhere' is missing; name a folder"
    refused(FileNotFoundError, nowhere, name, tmp_path / "nowhere")
    refused(ValueError, f"dataset '{name}' needs a root: the folder that holds", name, None)
    inside = next(path for path in sorted(home.iterdir()) if path.is_dir())
    for wrong, message in (
        (inside, r"root '.*' is inside the dataset; give '(.*)' instead"),
        (root.parent, r"the dataset is one level deeper than '.*data'; give '(.*)'"),
    ):
        with pytest.raises(FileNotFoundError) as error:
            open_dataset(name, wrong)
        advised = re.fullmatch(message, str(error.value))
        assert len(open_dataset(name, advised[1])) == 2
    (tmp_path / "empty").mkdir()
    refused(FileNotFoundError, r"no .* below '.*empty'; found: nothing", name, tmp_path / "empty")


def test_a_wrong_root_of_voc(tmp_path):
    data = tmp_path / "data"
    home, _ = built("voc", data)
    for root in (home, home.parent):  # deeper than the folder of all datasets, and yet clear
        assert len(open_dataset("voc", root)) == 2
        assert find_datasets(root) == ["voc"]
    inside = f"is inside the dataset; give {re.escape(repr(str(home.resolve())))} instead"
    refused(FileNotFoundError, inside, "voc", home / "JPEGImages")
    tmp_path = tmp_path / "other"
    lines(tmp_path / "notes.txt", "x")
    (tmp_path / "VOC2012").mkdir()
    missing = "no VOCdevkit/VOC2012 below .*; found: VOC2012, notes.txt$"
    refused(FileNotFoundError, missing, "voc", tmp_path)
    (tmp_path / "VOCdevkit" / "VOC2012" / "JPEGImages").mkdir(parents=True)
    refused(FileNotFoundError, r"no ImageSets/Segmentation below .*JPEGImages", "voc", tmp_path)


def test_layouts_are_found(tmp_path):
    refused(ValueError, "dataset is 'pascal'; allowed: 'voc', 'context'", "pascal", tmp_path)
    refused(ValueError, "split of voc is 'test'; allowed: 'val', 'train'", "voc", tmp_path, "test")
    assert find_datasets(tmp_path) == []
    for name in ("voc", "context", "coco", "ade20k"):
        trees.BUILDERS[name](tmp_path)
    trees.aep(tmp_path / "aep")
    assert find_datasets(tmp_path) == ["voc", "context", "coco", "ade20k", "aep"]
    assert find_datasets(trees.folder(tmp_path / "own")) == ["folder"]
    assert near_misses(tmp_path) == {}
    (tmp_path / "coco_stuff164k" / "annotations").rename(tmp_path / "elsewhere")
    (missing,) = near_misses(tmp_path).items()
    assert missing[0] == "coco"
    assert re.match(r"no annotations below .*coco_stuff164k'; found: images", missing[1])
    with pytest.raises(FileNotFoundError, match="is missing"):
        find_datasets(tmp_path / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_missing_files_are_named(name, tmp_path):
    _, dataset = built(name, tmp_path)
    key = dataset.keys[0]
    dataset.masks[key].unlink()
    refused(FileNotFoundError, f"1 of 2 masks are missing in .*: {key}", name, tmp_path)
    dataset.images[key].unlink()
    if name in ("voc", "context"):  # they list their images
        refused(FileNotFoundError, f"1 of 2 images are missing in .*: {key}", name, tmp_path)
    else:
        assert key not in open_dataset(name, tmp_path).keys
        dataset.images[dataset.keys[1]].unlink()
        refused(FileNotFoundError, "1 of 1 images are missing in", name, tmp_path)


# Pictures and masks as they come


def test_odd_pictures(tmp_path):
    _, dataset = built("voc", tmp_path)
    path = dataset.images["2007_000033"]
    photo(path, mode="L")
    pixels = np.asarray(dataset[1].image)
    assert (pixels[..., 0] == pixels[..., 2]).all()
    photo(path, mode="CMYK")
    assert dataset[1].image.mode == "RGB"
    turned = Image.Exif()
    turned[0x0112] = 6  # stored lying on its side
    Image.new("RGB", (HIGH, WIDE)).save(path, exif=turned)
    assert dataset[1].image.size == (WIDE, HIGH)
    assert check(dataset).heights == (HIGH, HIGH)
    photo(path, exif=turned)
    unreadable(dataset, "2007_000033.jpg' is 12x16 pixels upright, its mask is 16x12; allowed: the")


def test_damaged_files_are_named(tmp_path):
    _, dataset = built("voc", tmp_path)
    path = dataset.masks["2007_000033"]
    path.write_bytes(path.read_bytes()[:60])
    unreadable(dataset, r"mask '.*2007_000033.png' is damaged or no image")
    dataset.images["2007_000042"].write_text("no picture")
    with pytest.raises(ValueError, match=r"2007_000042.jpg' is no image of a known format"):
        dataset[0]
    found = check(dataset)
    named = [problem.split("'")[1][-15:] for problem in found.problems]
    assert named == ["2007_000042.jpg", "2007_000033.png"]
    assert (found.images, sum(found.images_per_class.values())) == (2, 0)


def test_pictures_that_are_cut_short_are_found_by_reading_them(tmp_path):
    _, dataset = built("voc", tmp_path)
    path = dataset.images["2007_000033"]
    path.write_bytes(path.read_bytes()[:-40])
    assert check(dataset).problems == ()
    (problem,) = check(dataset, decode=True).problems
    assert "2007_000033.jpg' is damaged or cut short" in problem


def test_what_would_be_read_for_ever_is_not_begun(tmp_path):
    home, dataset = built("folder", tmp_path)
    for path in (dataset.images["a"], dataset.masks["b"]):
        path.unlink()
        os.mkfifo(path)
    assert len(check(dataset, decode=True).problems) == 2
    (home / "classes.txt").unlink()
    (home / "classes.txt").symlink_to("/dev/zero")
    refused(FileNotFoundError, r"classes.txt' is no ordinary file", "folder", tmp_path)


def test_other_endings_of_jpegs(tmp_path):
    home, dataset = built("ade20k", tmp_path)
    for path in dataset.images.values():
        path.rename(path.with_suffix(".jpeg"))
    assert open_dataset("ade20k", home).keys == dataset.keys


def test_masks_of_other_kinds(tmp_path):
    _, dataset = built("folder", tmp_path)
    path = dataset.masks["b"]
    for values in (labels(0, 2).astype(np.uint16), labels(0, 1).astype(bool)):
        Image.fromarray(values).save(path)
        assert np.array_equal(dataset.truth(1), values)
    Image.fromarray(labels(0, 1).astype(np.uint16) * 300).save(path)
    unreadable(dataset, r"b.png' has label 300; allowed: 0 to 2 and 255")
    Image.fromarray(labels(0, 1)).convert("RGB").save(path)
    unreadable(dataset, r"b.png' has mode RGB; allowed: palette \(P\) or grey")


@pytest.mark.parametrize(
    ("name", "odd", "allowed"),
    [
        ("voc", 21, "0 to 20 and 255"),
        ("context", 60, "0 to 59"),
        ("context", 255, "0 to 59"),
        ("ade20k", 151, "0 to 150"),
        ("ade20k", 255, "0 to 150"),
        ("aep", 39, "0 to 38"),
        ("folder", 3, "0 to 2 and 255"),
    ],
)
def test_other_labels_are_refused(name, odd, allowed, tmp_path):
    _, dataset = built(name, tmp_path)
    path = dataset.masks[dataset.keys[1]]
    mask(path, labels(0, odd))
    unreadable(dataset, f"{path.name}' has label {odd}; allowed: {allowed}$")


# VOC


def test_voc_truth_and_the_augmented_masks(tmp_path):
    home, plain = built("voc", tmp_path)
    assert plain.keys == ("2007_000042", "2007_000033")  # as listed
    assert (plain[0].present, plain[1].present) == ((), (0, 19))
    assert np.array_equal(plain.truth(1), labels(0, 1, 20, 255))
    trees.voc(tmp_path, masks="SegmentationClassAug")
    mask(home / "SegmentationClassAug" / "2007_000033.png", labels(7, 7))
    augmented = open_dataset("voc", tmp_path)
    assert augmented[1].present == (6,)
    assert plain.masks_from == "SegmentationClass"
    assert augmented.masks_from == "SegmentationClassAug"


def test_voc_palettes(tmp_path):
    """Indices are labels in any palette, but not where a program has renumbered the file."""
    _, dataset = built("voc", tmp_path)
    path = dataset.masks["2007_000033"]
    colours = {label: colour for colour, label in colour_map().items()}
    published = [value for colour in colour_map() for value in colour]
    odd = np.random.default_rng(0).integers(0, 256, 768).tolist()
    for palette in (published, odd, [v for grey in range(256) for v in (grey,) * 3]):
        mask(path, labels(0, 1, 20, 255), palette)
        assert np.array_equal(dataset.truth(1), labels(0, 1, 20, 255))
    mask(path, labels(0, 1, 2, 0), [value for label in (0, 15, 1) for value in colours[label]])
    unreadable(dataset, r"labels \[0, 15, 1\] at the indices \[0, 1, 2\]")


def test_voc_colours(tmp_path):
    colours = {label: colour for colour, label in colour_map().items()}
    # From VOC's development kit: background, aeroplane, bicycle, tv monitor, not counted.
    published = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 20: (0, 64, 128)}
    assert published | {255: (224, 224, 192)} == {k: colours[k] for k in (0, 1, 2, 20, 255)}
    assert len(colours) == 256
    _, dataset = built("voc", tmp_path)
    path = dataset.masks["2007_000033"]
    table = np.array([colours[label] for label in range(256)], dtype=np.uint8)
    for values in (labels(0, 20, 2, 255), labels(*range(1, 17))):
        Image.fromarray(table[values]).save(path)
        assert np.array_equal(dataset.truth(1), values)
    for colour in ((1, 2, 3), colours[21]):
        Image.new("RGB", (WIDE, HIGH), colour).save(path)
        expected = rf"2007_000033.png' has the colour \({colour[0]}, .*22 colours of VOC's map"
        unreadable(dataset, expected)


def test_voc_lists(tmp_path):
    home, _ = built("voc", tmp_path)
    listed = home / "ImageSets" / "Segmentation" / "val.txt"
    pair = "/JPEGImages/2007_000033.jpg /SegmentationClassAug/2007_000033.png"
    listed.write_text(f"﻿{pair}\r\n\r\n", encoding="utf-8")
    assert open_dataset("voc", tmp_path).keys == ("2007_000033",)
    lines(listed, "2007_000033", "2007_000042", "2007_000033")
    refused(ValueError, r"val.txt' names 2007_000033 twice", "voc", tmp_path)
    listed.write_text("\n")
    refused(ValueError, r"val.txt' is empty", "voc", tmp_path)
    lines(listed, "a", "b", "2007_000033", "c", "d")
    missing = r"4 of 5 images are missing.*JPEGImages': a, b, c and 1 more$"
    refused(FileNotFoundError, missing, "voc", tmp_path)
    listed.unlink()
    refused(FileNotFoundError, r"val.txt' is missing", "voc", tmp_path)


# Context and ADE20K


def test_context_truth_and_lists(tmp_path):
    home, dataset = built("context", tmp_path)
    assert dataset.keys == ("b", "a")
    assert dataset[1].present == (6, 58)
    assert dataset.classes[58] == "wood"
    (home / "ImageSets" / "SegmentationContext" / "val.txt").unlink()
    neither = r"neither list .*Context/val.txt' .* are of val"
    refused(FileNotFoundError, neither, "context", tmp_path)
    lines(home / "ImageSets" / "Main" / "val.txt", "b", "a", "without-mask")
    assert open_dataset("context", tmp_path).keys == ("b", "a")
    lines(home / "ImageSets" / "Main" / "val.txt", "without-mask")
    refused(FileNotFoundError, r"no mask of val in .*SegmentationClassContext", "context", tmp_path)


def test_ade20k_truth_and_splits(tmp_path):
    home, dataset = built("ade20k", tmp_path)
    assert dataset.keys == ("ADE_val_00000001", "ADE_val_00000002")
    assert dataset[0].present == (12, 149)
    assert dataset[1].present == (0,)
    refused(FileNotFoundError, r"images/training' is missing", "ade20k", tmp_path, "train")
    (home / "images" / "validation" / "._ADE_val_00000001.jpg").write_text("a system's file")
    assert len(open_dataset("ade20k", tmp_path)) == 2
    (home / "annotations" / "validation").rename(home / "annotations" / "val")
    refused(FileNotFoundError, r"annotations/validation' is missing", "ade20k", tmp_path)
