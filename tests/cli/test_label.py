"""``pixalign label``, as typed."""

import json

import pytest
from PIL import Image

from label_folders import noise_png, write_pictures


@pytest.fixture
def folder(tmp_path):
    return write_pictures(tmp_path / "pictures", 3)


def typed(folder, sd1_folder, *more):
    options = ("--model", sd1_folder, "--device", "cpu", "--preset", "fast")
    return ("label", folder, *more, *options)


def test_label_writes_formats_and_goes_on(shell, folder, sd1_folder, tmp_path):
    out = tmp_path / "out"
    noise_png(folder / "broken.png")
    asked = typed(folder, sd1_folder, "dog", "car=a red car", "--out", out, "--format", "yolo")
    code, said, err = shell(*asked, "--format", "coco", "--queue", 1)
    assert code == 0
    assert "3 pictures labelled (3 in this run" in said
    assert "warning: 1 picture failed" in err
    assert "broken.png" in (out / "failed.csv").read_text()
    names = {path.name for path in out.iterdir()}
    assert names == {
        "run", "yolo", "coco", "queue", "review.csv", "review.html", "summary.json", "failed.csv",
    }  # fmt: skip
    instances = json.loads((out / "coco/annotations/instances_train.json").read_text())
    assert [row["name"] for row in instances["categories"]] == ["dog", "car"]

    code, said, _ = shell(*asked, "--format", "png", "--instances", "off", "--json")
    record = json.loads(said)
    assert code == 0
    assert record["labelled_now"] == 0
    assert record["pictures"] == 3
    assert Image.open(next((out / "png").rglob("*.png"))).mode == "P"


def test_one_picture_is_no_pictures(shell, sd1_folder, tmp_path):
    folder = write_pictures(tmp_path / "one", 1)
    code, said, err = shell(*typed(folder, sd1_folder, "dog", "cat", "--out", tmp_path / "out"))
    assert code == 0, err
    assert said.startswith("1 picture labelled")
    assert "1 pictures" not in said
    assert "1 objects" not in said


def test_lists_from_a_file(shell, folder, sd1_folder, tmp_path):
    (tmp_path / "list.csv").write_text("image,classes\n00.png,dog;cat\n02.png,tree\n")
    asked = typed(folder, sd1_folder, "--classes", tmp_path / "list.csv", "--json")
    code, said, err = shell(*asked, "--out", tmp_path / "out")
    assert code == 0, err
    assert json.loads(said)["pictures"] == 2
    assert list(json.loads(said)["pictures_by_class"]) == ["dog", "cat", "tree"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "no classes given"),
        (("dog", "dog"), "'dog' is given twice"),
        (("dog", "--format", "voc"), "'voc' is not one of 'coco'"),
        (("dog", "--classes", "some.txt"), "allowed: one of them"),
        (("--classes", "missing.txt"), "missing.txt"),
        (("dog", "--threshold", "2"), "threshold is 2"),
    ],
)
def test_bad_input_is_told_before_a_model_is_loaded(shell, folder, tmp_path, more, message):
    code, _, err = shell("label", folder, *more, "--out", tmp_path / "out", "--model", "nowhere")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_pictures_and_labels_want_folders_of_their_own(shell, folder):
    code, _, err = shell("label", folder, "dog", "--out", folder)
    assert code == 2
    assert "is the output too; choose another --out" in err


def test_folders_that_hold_nothing(shell, tmp_path):
    for folder, message in ((tmp_path, "holds no picture"), (tmp_path / "x", "is missing")):
        code, _, err = shell("label", folder, "dog", "--out", tmp_path / "out")
        assert code == 2
        assert message in err
