"""What the formats write, read back by hand or by another library."""

import json
import os
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from hypothesis import given
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from scipy import ndimage

from labelling_runs import CLASSES, Run, a_run, labelled, read_brush
from pixalign.labelling.formats import FORMATS, brush, check_formats, write_format
from pixalign.pictures.coco import compressed_runs, run_lengths
from pixalign.pictures.segments import find_segments
from random_masks import masks, smooth_mask


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("run"))


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {
        ".written-by-pixalign"
    }


def same_segments(run, found):
    """``found[key]`` are (label, bool [H, W]) of the segments in their order."""
    for picture in run:
        regions = found[picture.key]
        assert len(regions) == len(picture.segments)
        for segment, (label, region) in zip(picture.segments, regions, strict=True):
            assert label == segment.label
            np.testing.assert_array_equal(region, picture.region(segment))


@given(masks())
def test_runs_are_pycocotools(mask):
    numbers, segments = find_segments(mask)
    for segment, runs in zip(segments, run_lengths(numbers, segments), strict=True):
        region = np.asfortranarray(numbers == segment.number).astype(np.uint8)
        packed = compressed_runs(runs, mask.shape)
        assert packed["counts"].encode() == coco_mask.encode(region)["counts"]


@given(masks(classes=1, side=40))
def test_brush_is_exact(mask):
    values = read_brush(brush.brush_runs(mask > 0)).reshape(*mask.shape, 4)
    assert (values == 255 * mask[..., None]).all()


def test_brush_with_long_runs():
    region = np.zeros((300, 400), dtype=bool)
    region[130:260] = True
    packed = brush.brush_runs(region)
    assert len(packed) < 40
    values = read_brush(packed).reshape(300, 400, 4)
    np.testing.assert_array_equal(values, 255 * np.repeat(region[..., None], 4, axis=2))


def test_coco(run, tmp_path):
    assert write_format("coco", run, tmp_path) == []
    coco = COCO(tmp_path / "annotations/instances_train.json")
    assert [c["name"] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
    found = {}
    for image in coco.dataset["images"]:
        rows = coco.loadAnns(coco.getAnnIds(image["id"]))
        found[image["file_name"]] = [(r["category_id"], coco.annToMask(r) > 0) for r in rows]
        for row in rows:
            assert row["area"] == coco.annToMask(row).sum()
            np.testing.assert_array_equal(row["bbox"], coco_mask.toBbox(row["segmentation"]))
            assert 0.2 <= row["score"] <= 0.9
    same_segments(run, found)


def polygons(path, run):
    """Each segment beside its mask bool [H, W] as pycocotools fills it."""
    coco = COCO(path)
    rows = iter(coco.loadAnns(coco.getAnnIds()))
    for picture in run:
        for segment in picture.segments:
            yield picture.region(segment), coco.annToMask(next(rows)) > 0
    assert next(rows, None) is None


def test_coco_polygons(tmp_path):
    run = a_run(tmp_path, (96, 128))
    write_format("coco-polygons", run, tmp_path / "coco")
    for region, mask in polygons(tmp_path / "coco" / "annotations/instances_train.json", run):
        whole = ndimage.binary_fill_holes(region, structure=np.ones((3, 3)))
        assert (mask & whole).sum() >= 0.98 * (mask | whole).sum()


@pytest.mark.parametrize("name", ["coco-polygons", "yolo"])
def test_holes_are_filled_and_told(name, tmp_path):
    mask = np.zeros((60, 80), dtype=np.uint8)
    mask[10:50, 10:70] = 2
    mask[20:30, 20:40] = mask[35:40, 50:52] = 0
    run = Run([labelled(tmp_path, "ring.png", mask)])
    (note,) = write_format(name, run, tmp_path / name)
    assert note.endswith("have no holes: 2 in 1 object, 210 pixels, are filled")
    if name == "coco-polygons":
        ((region, filled),) = polygons(tmp_path / name / "annotations/instances_train.json", run)
        assert (filled & ~region).sum() == 210


def test_panoptic(run, tmp_path):
    assert write_format("coco-panoptic", run, tmp_path) == []
    about = json.loads((tmp_path / "annotations/panoptic_train.json").read_text())
    names = {image["id"]: image["file_name"] for image in about["images"]}
    found = {}
    for row in about["annotations"]:
        pixels = np.asarray(Image.open(tmp_path / "annotations/panoptic_train" / row["file_name"]))
        numbers = pixels.astype(int) @ [1, 256, 65536]
        infos = row["segments_info"]
        assert set(np.unique(numbers)) - {0} == {info["id"] for info in infos}
        found[names[row["image_id"]]] = [(i["category_id"], numbers == i["id"]) for i in infos]
    same_segments(run, found)
    assert len({row["file_name"] for row in about["annotations"]}) == len(run)


def test_numbers_above_a_byte(tmp_path):
    grid = np.zeros((60, 60), dtype=np.uint8)
    grid[::3, ::3] = 1
    run = Run([labelled(tmp_path, "grid.png", grid)])
    write_format("coco-panoptic", run, tmp_path)
    pixels = np.asarray(Image.open(tmp_path / "annotations/panoptic_train/grid.png")).astype(int)
    np.testing.assert_array_equal(pixels @ [1, 256, 65536], run.pictures[0].segments_map)
    assert run.pictures[0].segments_map.max() == 400


def test_yolo(run, tmp_path):
    notes = write_format("yolo", run, tmp_path)
    about = yaml.safe_load((tmp_path / "data.yaml").read_text(encoding="utf-8"))
    assert about["names"] == dict(enumerate(CLASSES))
    pictures = sorted((tmp_path / about["train"]).rglob("*.*"))
    assert len(pictures) == len(run)
    by_pixels = {p.read_bytes(): p for p in pictures}
    assert len(notes) <= 1
    for picture in run:
        path = by_pixels[picture.path.read_bytes()]
        labels = Path(str(path).replace("/images/", "/labels/").rsplit(".", 1)[0] + ".txt")
        rows = [line.split() for line in labels.read_text().splitlines()]
        assert [int(row[0]) for row in rows] == [s.label - 1 for s in picture.segments]
        for row, segment in zip(rows, picture.segments, strict=True):
            points = np.array(row[1:], dtype=float).reshape(-1, 2)
            assert len(points) >= 3
            assert points.min() >= 0
            assert points.max() <= 1
            flat = (points * picture.size[::-1]).ravel().tolist()
            mask = coco_mask.decode(coco_mask.frPyObjects([flat], *picture.size))[..., 0] > 0
            assert (mask & picture.region(segment)).sum() >= 0.98 * segment.area


def test_label_studio(run, tmp_path):
    assert write_format("label-studio", run, tmp_path) == []
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert tasks[2]["data"]["image"] == "/data/local-files/?d=photos/below/%C3%A4%20b.png"
    found = {}
    for task, picture in zip(tasks, run, strict=True):
        (prediction,) = task["predictions"]
        assert prediction["model_version"] == "pixalign lab:sd1 dense"
        assert 0 <= prediction["score"] <= 1
        found[picture.key] = []
        for result in prediction["result"]:
            height, width = result["original_height"], result["original_width"]
            assert (height, width) == picture.size
            values = read_brush(result["value"]["rle"]).reshape(height, width, 4)
            (label,) = result["value"]["brushlabels"]
            found[picture.key].append((CLASSES.index(label) + 1, values[..., 3] > 0))
    same_segments(run, found)
    view = ElementTree.fromstring((tmp_path / "labels.xml").read_text(encoding="utf-8"))
    assert [label.get("value") for label in view.iter("Label")] == list(CLASSES)
    control = view.find("BrushLabels")
    results = tasks[0]["predictions"][0]["result"]
    assert {(r["from_name"], r["to_name"], r["image_rotation"]) for r in results} == {
        (control.get("name"), control.get("toName"), 0)
    }


def test_cvat(run, tmp_path):
    assert write_format("cvat", run, tmp_path / "cvat") == []
    write_format("coco", run, tmp_path / "coco")
    with zipfile.ZipFile(tmp_path / "cvat" / "annotations.zip") as archive:
        found = json.loads(archive.read("annotations/instances_default.json"))
    assert found == json.loads(
        (tmp_path / "coco" / "annotations/instances_train.json").read_bytes()
    )
    labels = json.loads((tmp_path / "cvat" / "labels.json").read_text())
    assert [(label["name"], label["type"]) for label in labels] == [(n, "mask") for n in CLASSES]


def test_masks(run, tmp_path):
    assert write_format("png", run, tmp_path) == []
    names = [f"masks/{name}.png" for name in ("a", "a.png", "below/ä b", "empty")]
    assert files(tmp_path) == {*names, "classes.txt"}
    assert (tmp_path / "classes.txt").read_text(encoding="utf-8").splitlines() == list(CLASSES)
    for name, picture in zip(names, run, strict=True):
        mask = Image.open(tmp_path / name)
        assert mask.mode == "P"
        np.testing.assert_array_equal(mask, picture.mask)


def test_masks_of_many_classes(tmp_path):
    mask = smooth_mask(40, 40).astype(np.uint16) * 300
    run = Run([labelled(tmp_path, "a.png", mask)], classes=tuple(f"c{n}" for n in range(1000)))
    write_format("png", run, tmp_path)
    np.testing.assert_array_equal(Image.open(tmp_path / "masks" / "a.png"), mask)


def test_image_folder(run, tmp_path):
    assert write_format("huggingface", run, tmp_path) == []
    lines = (tmp_path / "train/metadata.jsonl").read_text().splitlines()
    for line, picture in zip(lines, run, strict=True):
        row = json.loads(line)
        assert (tmp_path / "train" / row["file_name"]).read_bytes() == picture.path.read_bytes()
        np.testing.assert_array_equal(
            Image.open(tmp_path / "train" / row["mask_file_name"]), picture.mask
        )
        boxes = [list(segment.box) for segment in picture.segments]
        assert row["objects"]["bbox"] == boxes
    assert json.loads((tmp_path / "classes.json").read_text())["1"] == "dog"


@pytest.mark.parametrize("name", FORMATS)
def test_a_second_run_leaves_nothing_of_the_first(name, run, tmp_path):
    write_format(name, run, tmp_path / "one")
    (tmp_path / "one" / "mine.txt").write_text("mine")
    fewer = Run(run.pictures[1:3])
    write_format(name, fewer, tmp_path / "one")
    write_format(name, fewer, tmp_path / "other")
    assert files(tmp_path / "one") == {*files(tmp_path / "other"), "mine.txt"}
    for path in files(tmp_path / "other"):
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "other" / path).read_bytes()
    assert all(picture.path.is_file() for picture in run)


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
@pytest.mark.parametrize("name", FORMATS)
def test_names_that_are_no_text(name, tmp_path):
    picture = labelled(tmp_path / "photos", os.fsdecode(b"caf\xe9.png"), smooth_mask(20, 30))
    write_format(name, Run([picture]), tmp_path / "out")


def test_unknown_and_missing(monkeypatch):
    with pytest.raises(ValueError, match=r"format is 'voc'; allowed: 'coco', .*'huggingface'"):
        check_formats(["coco", "voc"])
    monkeypatch.setattr("pixalign.labelling.formats.find_spec", lambda name: None)
    check_formats(["yolo", "coco-polygons"])
    with pytest.raises(ValueError, match=r"pip install 'pixalign\[label\]'"):
        check_formats(["coco"])
