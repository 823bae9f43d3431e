"""The objects of a result, as other programs read them."""

import importlib.util
import json

import numpy as np
import pytest
from pycocotools.coco import COCO

import pixalign as pa
from helpers import small
from tiny import photo

CLASSES = ["dog", "cat"]


@pytest.fixture(scope="module")
def result():
    config = pa.AlignConfig(elbo_steps=2, collect_steps=1, threshold=0.6)
    return pa.load(small("sd1")).align(photo(60, 44), CLASSES, config=config)


@pytest.mark.parametrize("instances", [True, False])
def test_coco(result, instances, tmp_path):
    path = tmp_path / "coco.json"
    path.write_text(json.dumps(result.to_coco(instances=instances)))
    coco = COCO(path)
    mask = np.zeros((44, 60), dtype=int)
    rows = coco.loadAnns(coco.getAnnIds(1))
    for row in rows:
        region = coco.annToMask(row) > 0
        assert not mask[region].any()
        mask[region] = row["category_id"]
        probs = result.probs()[row["category_id"]][region]
        assert row["score"] == pytest.approx(probs.mean(), abs=1e-4)
    assert len(rows) > len(CLASSES) if instances else len(rows) == len(np.unique(mask)) - 1
    np.testing.assert_array_equal(mask, result.mask())
    assert [c["name"] for c in coco.loadCats(coco.getCatIds())] == CLASSES


def test_coco_polygons_and_small_objects(result):
    everything = result.to_coco(polygons=True)["annotations"]
    assert all(min(map(len, row["segmentation"])) >= 6 for row in everything)
    areas = [row["area"] for row in everything]
    large = result.to_coco(polygons=True, min_area=20)["annotations"]
    assert [row["area"] for row in large] == [area for area in areas if area >= 20]
    assert 0 < len(large) < len(areas)
    assert result.to_coco(threshold=1.0, min_area=10**6)["annotations"] == []


@pytest.mark.skipif(importlib.util.find_spec("supervision") is not None, reason="it is there")
def test_supervision_is_named_where_it_lacks(result):
    with pytest.raises(ValueError, match="pip install supervision"):
        result.to_supervision()
