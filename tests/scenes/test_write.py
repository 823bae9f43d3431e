"""Scenes as files."""

import json

import numpy as np
import pytest
from PIL import Image

from pixalign.scenes.atlas import class_names, training_shares
from pixalign.scenes.render import render
from pixalign.scenes.sample import attribute_captions, sample_scenes
from pixalign.scenes.write import describe, write_scenes


def test_written_scenes_can_be_read_back(tmp_path):
    paths = write_scenes("val", 5, tmp_path / "out", start=7, size=96)
    assert sorted(paths) == sorted((tmp_path / "out").iterdir())
    assert len(paths) == 5 * 2 + 2
    values = json.loads((tmp_path / "out" / "scenes.json").read_text(encoding="utf-8"))
    batch = sample_scenes("val", 7, 5)
    painted = render(batch, 96)
    for scene, entry in enumerate(values["scenes"]):
        mask = np.asarray(Image.open(tmp_path / "out" / entry["mask"]))
        np.testing.assert_array_equal(mask, painted.masks[scene].numpy())
        image = np.asarray(Image.open(tmp_path / "out" / entry["image"])) / 255
        expected = painted.images[scene].permute(1, 2, 0).numpy()
        assert np.abs(image - expected).max() <= 0.5 / 255 + 1e-6
        assert entry["captions"]["train"] == entry["captions"]["full"] == batch.captions[scene]
        assert entry["captions"]["attribute"] == attribute_captions(batch)[scene]
        labels = [item["label"] for item in entry["objects"]]
        assert set(np.unique(mask)) - {0} == set(labels)
        for item in entry["objects"]:
            assert class_names()[item["label"] - 1] == item["name"]
            assert item["training_share"] == pytest.approx(
                training_shares()[item["label"] - 1], abs=1e-6
            )
            if labels.count(item["label"]) == 1:
                y0, x0, y1, x1 = item["box"]
                own = mask == item["label"]
                assert own[y0:y1, x0:x1].sum() == own.sum()
                edges = (own[y0], own[y1 - 1], own[:, x0], own[:, x1 - 1])
                assert all(edge.any() for edge in edges)
    assert Image.open(tmp_path / "out" / "sheet.png").width > 96


def test_a_hidden_object_has_no_box():
    batch = sample_scenes("val", 0, 1, objects=2)
    label, size = batch.labels[0, 0], batch.sizes[0, 0]
    for array, value in ((batch.labels, label), (batch.sizes, size)):
        array[0, :2] = value
    for array in (batch.centres, batch.styles, batch.angles, batch.flips):
        array[0, 1] = array[0, 0]
    behind, front = describe(batch, render(batch))[0]["objects"]
    assert behind["box"] is None
    assert behind["visible_share"] == 0
    assert front["visible_share"] == 1
