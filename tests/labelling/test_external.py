"""Annotations as other libraries read them, each in `make external`'s environment.

Runs, brushes, PNGs and panoptic PNGs come back in every pixel; polygons to 98 per cent.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from labelling_runs import Run, labelled
from pixalign.labelling.formats import write_format
from random_masks import smooth_mask

REPOSITORY = Path(__file__).parents[2]
EXTERNAL = Path(os.environ.get("PIXALIGN_EXTERNAL", REPOSITORY / ".venv-external")).absolute()
pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(
        not (EXTERNAL / "bin/python").exists(), reason="`make external` makes its environment"
    ),
]
EXACT = [
    ("datumaro_coco", "coco"),
    ("supervision_coco", "coco"),
    ("datumaro_cvat", "cvat"),
    ("datumaro_panoptic", "coco-panoptic"),
    ("label_studio", "label-studio"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    masks = [smooth_mask(240, 320, sigma=sigma, seed=sigma) for sigma in (9, 15, 25)]
    masks.append(np.zeros_like(masks[0]))
    named = zip("abcd", masks, strict=True)
    return Run([labelled(folder, f"{name}.png", mask) for name, mask in named])


def read_back(reader, name, run, tmp_path):
    """[(picture, class, bool [H, W])], and what the format said."""
    notes = write_format(name, run, tmp_path / name)
    tool, out = REPOSITORY / "tools/read_annotations.py", tmp_path / "out.npz"
    command = [EXTERNAL / "bin/python", tool, reader, tmp_path / name, out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return [(*key.split("|")[::2], arrays[key]) for key in arrays.files], notes


def objects(run):
    return [
        (Path(picture.key).stem, run.classes[segment.label - 1], picture.region(segment))
        for picture in run
        for segment in picture.segments
    ]


def by_picture(found):
    return sorted(found, key=lambda each: (each[0], run_order(each[2])))


def run_order(mask):
    """Objects do not overlap, so the first pixel tells them apart."""
    return int(mask.argmax())


@pytest.mark.parametrize(("reader", "name"), EXACT)
def test_every_pixel_comes_back(reader, name, run, tmp_path):
    found, notes = read_back(reader, name, run, tmp_path)
    assert notes == []
    expected = objects(run)
    assert len(found) == len(expected) > 30
    for one, other in zip(by_picture(found), by_picture(expected), strict=True):
        assert one[:2] == other[:2]
        np.testing.assert_array_equal(one[2], other[2])


def pairs(found, run):
    """Each object, its holes filled, beside the mask of its picture and class most like it."""
    for picture, name, region in objects(run):
        whole = ndimage.binary_fill_holes(region, structure=np.ones((3, 3)))
        masks = [mask for *about, mask in found if about == [picture, name]]
        yield whole, max(masks, key=lambda mask: overlap(mask, whole))


def overlap(one, other):
    return (one & other).sum() / (one | other).sum()


def test_polygons_come_back(run, tmp_path):
    found, notes = read_back("datumaro_coco", "coco-polygons", run, tmp_path)
    assert len(found) == len(objects(run))
    overlaps = [overlap(*pair) for pair in pairs(found, run)]
    print(
        f"{len(overlaps)} polygons: least {min(overlaps):.4f}, mean {np.mean(overlaps):.4f}", notes
    )
    assert min(overlaps) >= 0.98


def test_rows_of_yolo_come_back(run, tmp_path):
    """supervision fills by OpenCV, which counts every pixel that a side touches as inside."""
    found, _ = read_back("supervision_yolo", "yolo", run, tmp_path)
    assert len(found) == len(objects(run))
    for whole, mask in pairs(found, run):
        assert (mask & whole).sum() >= 0.98 * whole.sum()
        assert not (mask & ~ndimage.binary_dilation(whole, np.ones((3, 3)), iterations=2)).any()


def test_image_folder(run, tmp_path):
    found, _ = read_back("huggingface", "huggingface", run, tmp_path)
    masks = {picture: np.zeros((240, 320), dtype=int) for picture in "abcd"}
    for picture, name, region in found:
        masks[picture][region] = run.classes.index(name) + 1
    for picture in run:
        np.testing.assert_array_equal(masks[Path(picture.key).stem], picture.mask)


CVAT = """
import json, sys
sys.path.append(sys.argv[1])
import numpy as np
from cvat_cli._internal.common import FunctionLoader
from cvat_sdk.masks import decode_mask, encode_mask
from types import SimpleNamespace
from PIL import Image

parameters = {"classes": "dog,cat", "model": sys.argv[2], "preset": "fast", "min_area": 0}
function = FunctionLoader("pixalign.cli.cvat", None, parameters).load()
labels = [(label.id, label.name, label.type) for label in function.spec.labels]
image = Image.open(sys.argv[3])
mask = np.zeros((image.height, image.width), dtype=int)
asked = SimpleNamespace(conf_threshold=None, conv_mask_to_poly=False)
for shape in function.detect(asked, image):
    region = decode_mask(shape.points, image_width=image.width, image_height=image.height)
    assert [int(n) for n in shape.points] == encode_mask(region)
    mask[region] = shape.label_id
asked.conv_mask_to_poly = True
polygons = {shape.type.value for shape in function.detect(asked, image)}
asked.conf_threshold = 1.0
np.savez(sys.argv[4], mask=mask, labels=json.dumps(labels), polygons=sorted(polygons),
         none=len(function.detect(asked, image)))
"""


SUPERVISION = """
import sys
sys.path.append(sys.argv[1])
import numpy as np
import pixalign as pa

config = pa.AlignConfig.fast(threshold=0.6)
result = pa.load(sys.argv[2]).align(sys.argv[3], ["dog", "cat"], config=config)
found = result.to_supervision()
mask = np.zeros((result.image.height, result.image.width), dtype=int)
for region, label, box in zip(found.mask, found.class_id, found.xyxy, strict=True):
    mask[region] = label + 1
    rows, columns = np.nonzero(region)
    box_of_region = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert box.tolist() == box_of_region
assert (mask == result.mask()).all()
assert found["class_name"].tolist() == [result.classes[label] for label in found.class_id]
assert ((found.confidence > 0) & (found.confidence <= 1)).all()
assert len(found) > 2
assert len(result.to_supervision(min_area=10**6)) == 0
"""


def beside_our_own_packages(code, *arguments):
    """Run a program that knows our packages and the external ones."""
    (packages,) = (EXTERNAL / "lib").glob("python*/site-packages")
    command = [sys.executable, "-c", code, packages, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_supervision_s_detections(sd1_folder, photo, tmp_path):
    photo.save(tmp_path / "photo.png")
    beside_our_own_packages(SUPERVISION, sd1_folder, tmp_path / "photo.png")


def test_cvat_s_function(sd1_folder, photo, tmp_path):
    import pixalign as pa

    photo.save(tmp_path / "photo.png")
    out = tmp_path / "out.npz"
    beside_our_own_packages(CVAT, sd1_folder, tmp_path / "photo.png", out)
    config = pa.AlignConfig.fast(absent="drop")
    expected = pa.load(sd1_folder).align(tmp_path / "photo.png", ["dog", "cat"], config=config)
    with np.load(out) as found:
        np.testing.assert_array_equal(found["mask"], expected.mask())
        assert json.loads(str(found["labels"])) == [[1, "dog", "mask"], [2, "cat", "mask"]]
        assert found["polygons"].tolist() == (["polygon"] if expected.mask().any() else [])
        assert found["none"] == 0
