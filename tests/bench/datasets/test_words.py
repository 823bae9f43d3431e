"""COCO's outlines, phrases, own folders, the lab's scenes, and the check of all."""

import json
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trees
from pixalign.bench.datasets import check, open_dataset
from pixalign.bench.datasets.aep import convert_aep
from pixalign.bench.datasets.coco import region_pixels, unpacked
from pixalign.bench.datasets.lab import BASE, SceneDataset
from pixalign.scenes.atlas import class_names, training_shares
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import class_phrases
from pixalign.scenes.stress import DIALS, stress
from trees import box, built, labels, lines, mask, refused

# COCO


def test_coco_train_ids(tmp_path):
    home, dataset = built("coco", tmp_path)
    assert dataset.keys == ("000000000139", "000000000285")
    assert np.array_equal(dataset.truth(0), labels(1, 80, 0, 0))
    assert dataset[0].present == (0, 79)
    assert dataset[1].present == ()  # stuff only: kept, all background
    for path in home.glob("annotations/val2017/*_labelTrainIds.png"):
        path.unlink()
    raw = open_dataset("coco", tmp_path)  # COCO-Stuff's own masks, as they are unpacked
    assert raw.masks_from == "*.png"
    path = home / "annotations/val2017/000000000139.png"
    mask(path, labels(0, 12, 89, 181))  # numbers 1, 13, 90; 182 is stuff
    assert np.array_equal(raw.truth(0), labels(1, 12, 80, 0))
    mask(path, labels(0, 11))  # 12 is no category
    with pytest.raises(ValueError, match=r"139.png' has the id 11; allowed: .* COCO-Stuff has"):
        raw.truth(0)
    for number in raw.keys:
        (home / f"annotations/val2017/{number}.png").unlink()
    neither = r"_labelTrainIds.png in .* nor .*instances_val2017"
    refused(FileNotFoundError, neither, "coco", tmp_path)


def test_coco_masks_of_other_ids_are_refused(tmp_path):
    _, dataset = built("coco", tmp_path)
    mask(dataset.masks["000000000139"], labels(0, 176))  # as if the raw ones were renamed
    (problem,) = check(dataset).problems
    assert "139_labelTrainIds.png' has the id 176; allowed: those that training knows" in problem


def test_coco_as_it_is_unzipped(tmp_path):
    outline = {"id": 1, "category_id": 90, "segmentation": box(2, 2, 6, 6)}
    path = trees.instances(tmp_path, [outline])
    home = path.parents[1].rename(tmp_path / "coco")
    (home / "images" / "val2017").rename(home / "val2017")
    trees.photo(home / "val2017" / "extra.jpg")
    dataset = open_dataset("coco", tmp_path)
    assert dataset[0].present == (79,)
    assert check(dataset).unknown == ("extra",)
    assert open_dataset("coco", home).keys == dataset.keys


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_packed_runs_are_unpacked(runs):
    """Against pycocotools' own packing, for any picture of one column."""
    coco = pytest.importorskip("pycocotools.mask")
    packed = coco.frPyObjects({"size": [sum(runs), 1], "counts": runs}, sum(runs), 1)["counts"]
    assert unpacked(packed) == unpacked(packed.decode()) == runs


@pytest.mark.parametrize(
    "outline",
    [
        {"size": [12, 16], "counts": [0, 191]},
        {"size": [12, 16], "counts": [0, 193]},
        {"size": [12, 16], "counts": [-5, 197]},
        {"size": [10**9, 10**9], "counts": [0, 10**18]},
        {"size": [12, 16], "counts": "\x01"},
        {"size": [12, 16], "counts": "oooo"},
        {"size": [12, 16]},
        [[0, 0, 1e300, 0, 1e300, 1e300]],
        [[0, 0, float("nan"), 0, 5, 5]],
        [[0, 0, 5, 5]],
        [["a", "b", "c", "d", "e", "f"]],
        [[[1, 2, 3, 4, 5, 6]]],
        "round",
        7,
    ],
)
def test_outlines_are_checked_before_they_are_painted(outline):
    with pytest.raises((ValueError, KeyError)):
        region_pixels(outline, (12, 16))


def test_coco_instances(tmp_path):
    everywhere = {"size": [12, 16], "counts": [0, 192]}
    crowd = {"size": [12, 16], "counts": [12 * 12, 24, 24]}  # columns 12 and 13
    trees.instances(
        tmp_path,
        [
            {"id": 1, "category_id": 90, "segmentation": box(2, 2, 6, 6)},
            {"id": 2, "category_id": 13, "segmentation": box(0, 0, 8, 12)},
            {"id": 3, "category_id": 1, "segmentation": crowd, "iscrowd": 1},
            {"id": 4, "category_id": 2, "segmentation": everywhere, "iscrowd": 1},
            {"id": 5, "category_id": 27, "segmentation": box(2, 2, 4, 6) + box(4, 2, 6, 6)},
        ],
    )
    dataset = open_dataset("coco", tmp_path)
    assert dataset.keys == ("000000000139", "000000000285")
    expected = np.full((12, 16), 2)  # a crowd of bicycles, below all
    expected[:, :8] = 12  # number 13 is the 12th: 12 is no category
    expected[2:6, 2:6] = 25  # as large as annotation 1 and later; 27 is the 25th
    expected[:, 12:14] = 1  # a crowd, smaller than the large region
    assert np.array_equal(dataset.truth(0), expected)
    assert dataset.classes[24] == "backpack"
    assert dataset[1].present == ()
    assert check(dataset).empty == 1
    assert len(open_dataset("coco", tmp_path, limit=1)) == 1
    assert dataset.masks_from == "instances_val2017.json"
    trees.instances(tmp_path, [{"id": 1, "category_id": 90, "segmentation": box(2, 2, 6, 6)}])
    dataset = open_dataset("coco", tmp_path)
    assert [dataset.classes[index] for index in dataset[0].present] == ["toothbrush"]
    assert dataset.truth(0).astype(bool).sum() == 16
    assert np.array_equal(pickle.loads(pickle.dumps(dataset)).truth(0), dataset.truth(0))
    trees.coco(tmp_path)  # masks come before outlines
    assert open_dataset("coco", tmp_path).masks_from == "*_labelTrainIds.png"


def test_broken_coco_instances(tmp_path, monkeypatch):
    small = {"size": [5, 5], "counts": [0, 25]}
    for outline, message in (
        ("round", r"' has no outline that can be read: it is 'round'"),
        (small, r"' has no outline .*it is of \[5, 5\] pixels; allowed: \[12, 16\]"),
    ):
        path = trees.instances(tmp_path, [{"id": 7, "category_id": 1, "segmentation": outline}])
        with pytest.raises(ValueError, match=rf"annotation 7 in .*val2017.json{message}"):
            open_dataset("coco", tmp_path).truth(0)
    trees.instances(tmp_path, [], categories=tuple(range(1, 81)))
    refused(ValueError, r"80 categories; allowed: COCO's 80, .*\[12, 26, 29", "coco", tmp_path)
    path.write_text("{}")
    refused(ValueError, "is no file of COCO instances: KeyError: 'categories'", "coco", tmp_path)
    trees.instances(tmp_path, [])
    (tmp_path / "coco_stuff164k/images/val2017/000000000139.jpg").unlink()
    refused(FileNotFoundError, r"1 of 2 images are missing in .*: 000000000139", "coco", tmp_path)
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    refused(ValueError, r'needs pycocotools; .* pip install "pixalign\[bench\]"', "coco", tmp_path)


# AEP


def test_aep_phrases(tmp_path):
    trees.aep(tmp_path / "aep")
    dataset = open_dataset("aep", tmp_path)
    assert dataset.keys == open_dataset("aep", tmp_path / "aep").keys
    first, second = dataset
    named = {dataset.classes[index]: words for index, words in first.phrases.items()}
    assert named == {"rabbit": "three baby rabbits", "suitcase": "a pink"}
    assert first.present == (2, 28)
    assert second.phrases == {19: "a golden dog"}  # a rainbow is no class
    # They may be named by file and stand twice.
    twice = {"subject": ["cat", "cat"], "phrase": ["a red cat", "a blue cat"]}
    trees.aep(tmp_path / "aep", {"generate_0.png": twice, "generate_10.png": twice})
    assert open_dataset("aep", tmp_path)[0].phrases == {18: "a red cat"}


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        ([], "phrases.json' holds a list; allowed: {image"),
        ({"generate_0": trees.PHRASES["generate_0"]}, "has no phrases of generate_10"),
        ({"generate_0": ["rabbit"]}, "holds 'generate_0': a list"),
        ({"generate_0": {"subject": ["dog"]}}, "has the phrase None of 'generate_0'"),
        ({"generate_0": {"subject": ["dog"], "phrase": [3]}}, r"has the phrase \[3\]"),
        ({"generate_0": {"subject": ["dog"], "phrase": []}}, "1 subjects and 0 phrases of 'gener"),
        (
            trees.PHRASES | {"generate_0": {"subject": ["dogs"], "phrase": ["two dogs"]}},
            r"gives generate_0 the subjects \['dogs'\], none of which is a class",
        ),
    ],
)
def test_broken_phrases(phrases, message, tmp_path):
    trees.aep(tmp_path, phrases)
    refused(ValueError, message, "aep", tmp_path)


def test_missing_or_damaged_phrases(tmp_path):
    trees.aep(tmp_path)
    (tmp_path / "phrases.json").write_text("{")
    refused(ValueError, r"phrases.json' is no JSON", "aep", tmp_path)
    (tmp_path / "phrases.json").unlink()
    refused(FileNotFoundError, r"no phrases.json below .*convert_aep makes", "aep", tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_released_phrases_are_converted(protocol, tmp_path):
    content = {key: {k: tuple(v) for k, v in e.items()} for key, e in trees.PHRASES.items()}
    extra = {"generate_0": {**content["generate_0"], "tags": {"a", "b"}}}
    source = tmp_path / "prompts.pkl"
    source.write_bytes(pickle.dumps(content | extra, protocol))
    path = convert_aep(source, tmp_path / "phrases.json")
    assert json.loads(path.read_text()) == trees.PHRASES
    trees.aep(tmp_path, json.loads(path.read_text()))
    assert open_dataset("aep", tmp_path)[1].phrases == {19: "a golden dog"}


class Evil:
    """Unpickled carelessly, it calls what it names."""

    def __reduce__(self):
        return print, ("the pickle ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Evil(), r"is no pickle of phrases: it asks for builtins.print; allowed: lists, dicts"),
        ({"a": np.float32(1)}, r"is no pickle of phrases: it asks for numpy\S*; allowed: lists"),
        ({"a": b"bytes"}, "holds 'a': a bytes; allowed"),
        ({"a": {"subject": [1.5], "phrase": ["x"]}}, r"has the subject \[1.5\] of 'a'"),
        ([1], "holds a list"),
        (b"", "is no pickle of phrases"),
        (b"text", "is no pickle of phrases"),
        (pickle.dumps(trees.PHRASES)[:-9], "is no pickle of phrases"),
    ],
)
def test_other_pickles_are_refused(content, message, tmp_path, capsys):
    source = tmp_path / "prompts.pkl"
    source.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    with pytest.raises(ValueError, match=rf"prompts.pkl' {message}"):
        convert_aep(source, tmp_path / "phrases.json")
    assert not (tmp_path / "phrases.json").exists()
    assert capsys.readouterr().out == ""


# Own folders


def test_folder_truth(tmp_path):
    _, dataset = built("folder", tmp_path)
    assert dataset.classes == ("cat", "hot dog")
    assert np.array_equal(dataset.truth(0), labels(0, 1, 2, 255))
    assert [sample.present for sample in dataset] == [(0, 1), (1,)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat", "", "dog"], r"line 2 of '.*classes.txt' is blank"),
        (["cat", "dog", " Cat"], r"line 3 of '.*classes.txt' is 'Cat', like line 1"),
        (map(str, range(254)), r"classes.txt' has 254 classes; allowed: 1 to 253"),
        ([], r"classes.txt' has 0 classes; allowed: 1 to 253"),
    ],
)
def test_broken_class_files(names, message, tmp_path):
    trees.folder(tmp_path)
    lines(tmp_path / "classes.txt", *names)
    refused(ValueError, message, "folder", tmp_path)


def test_the_most_classes_still_fit_and_two_pictures_of_a_name_do_not(tmp_path):
    trees.folder(tmp_path)
    lines(tmp_path / "classes.txt", *map(str, range(253)))
    mask(tmp_path / "masks" / "a.png", labels(253, 255))
    assert open_dataset("folder", tmp_path)[0].present == (252,)
    trees.photo(tmp_path / "images" / "a.png")
    refused(ValueError, r"images' holds both a.jpg and a.png; allowed: one", "folder", tmp_path)


def test_check_tells_what_is_there(tmp_path):
    trees.folder(tmp_path)
    trees.pairs(tmp_path / "images", tmp_path / "masks", {"c": (255, 0)})
    found = check(open_dataset("folder", tmp_path))
    assert (found.name, found.split, found.images, found.empty) == ("folder", "all", 3, 1)
    assert (found.heights, found.widths) == ((12, 12), (16, 16))
    assert found.images_per_class == {"cat": 1, "hot dog": 2}
    assert found.ignored == pytest.approx((1 / 4 + 1 / 2) / 3)
    assert found.background == pytest.approx((1 / 4 + 1 / 2) / 3)


def test_check_names_every_problem(tmp_path):
    trees.folder(tmp_path)
    trees.pairs(tmp_path / "images", tmp_path / "masks", dict.fromkeys("cdef", (0, 9)))
    found = check(open_dataset("folder", tmp_path))
    assert all("has label 9; allowed: 0 to 2 and 255" in problem for problem in found.problems)
    named = [problem.split("'")[1][-5:] for problem in found.problems]
    assert named == ["c.png", "d.png", "e.png", "f.png"]
    assert found.images_per_class == {"cat": 1, "hot dog": 2}


# The lab


@pytest.mark.parametrize("split", ["test", "val"])
def test_lab_shows_the_study_scenes(split):
    dataset = open_dataset("lab", None, split, limit=40)
    assert dataset.split == split
    known = labelled_scenes(draw_scenes(split, 40), 128)
    assert len(dataset) == len(known) == 40
    for index in (39, 0, 31, 32, 13):  # in any order, over both chunks
        sample, subject = dataset[index], known[index]
        assert np.array_equal(sample.image, subject.image)
        assert sample.present == tuple(sorted(subject.labels))
        for place, label in enumerate(subject.labels):
            assert np.array_equal(sample.truth == label + 1, subject.truth.numpy() == place + 1)
        assert np.array_equal(dataset.truth(index), sample.truth)
        assert sample.phrases == {}
        assert sample.group == ""


def test_lab_counts_and_keys():
    dataset = open_dataset("lab", None)
    assert (len(dataset), dataset.split, dataset.classes) == (1002, "test", class_names())
    assert dataset.counts() == dict(zip(class_names(), training_shares(), strict=True))
    assert len(set(dataset.keys)) == 1002
    assert len(dataset._painted) == 0  # nothing is painted before it is asked for
    few = open_dataset("lab", None, limit=4)
    assert few.keys == ("scene-200000", "scene-300000", "scene-400000", "scene-400001")
    for index, key in enumerate(few.keys):
        same = dataset[dataset.keys.index(key)]
        assert np.array_equal(same.image, few[index].image)
        assert np.array_equal(same.truth, few[index].truth)
    assert len(dataset._painted) <= 2
    with pytest.raises(IndexError):
        few[4]
    refused(ValueError, "split of lab is 'train'; allowed: 'test', 'val'", "lab", None, "train")
    assert few[0].target is None
    few.truth(0)[:] = 7  # the caller's own
    assert (few.truth(0) != 7).any()


def test_lab_phrases():
    dataset = open_dataset("lab-phrases", None, limit=60)
    plain = open_dataset("lab", None, limit=60)
    assert dataset.keys == plain.keys
    scenes, described = draw_scenes("test", 60), 0
    for index, sample in enumerate(dataset):
        assert sample.phrases == class_phrases(scenes)[index]
        assert set(sample.present) <= set(sample.phrases)
        described += sum(words != class_names()[label] for label, words in sample.phrases.items())
    assert 20 < described < 120
    assert np.array_equal(dataset[7].truth, plain[7].truth)


def test_lab_toy_turns_one_dial_at_a_time():
    dataset = open_dataset("lab-toy", None, limit=2)
    assert len(dataset) == len(set(dataset.keys)) == 2 * 17
    groups = [sample.group for sample in dataset]
    turned = [f"{dial}={level}" for dial in DIALS for level in (0.25, 0.5, 0.75, 1)]
    assert groups == [group for group in (BASE, *turned) for _ in "ab"]
    assert dataset.keys[3] == "size=0.25-000001"
    assert isinstance(dataset, SceneDataset)
    for dial, level in (("size", 1.0), ("rarity", 0.5)):
        place = groups.index(f"{dial}={level:g}") + 1
        known = labelled_scenes(stress(dial, level, 1, 1), 128)[0]
        assert np.array_equal(dataset[place].image, known.image)
    target = dataset[0].target
    small = groups.index("size=1")
    assert dataset[small].target == target
    assert (dataset.truth(small) == target + 1).sum() < (dataset.truth(0) == target + 1).sum() / 4
    assert len(open_dataset("lab-toy", None)) == 60 * 17


@pytest.mark.parametrize(("name", "count"), [("lab", 4), ("lab-phrases", 11), ("lab-toy", 2)])
def test_lab_knows_what_a_lower_limit_has(name, count):
    few, many = (open_dataset(name, None, limit=limit) for limit in (count, 3 * count))
    assert [many.keys[place] for place in many.first(len(few))] == list(few.keys)
    assert many.keys[: len(few)] != few.keys
    assert many.digest(len(few)) == few.digest() != many.digest()


def test_lab_is_checked_like_the_others():
    found = check(open_dataset("lab", None, limit=9))
    assert (found.images, found.heights, found.ignored, found.empty) == (9, (128, 128), 0, 0)
    known = labelled_scenes(draw_scenes("test", 9), 128)
    assert sum(found.images_per_class.values()) == sum(len(subject.labels) for subject in known)
