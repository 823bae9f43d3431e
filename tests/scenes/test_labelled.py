"""Scenes beside their truth."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.render import render
from pixalign.scenes.sample import sample_scenes


def test_labelled_scenes_hold_the_truth():
    batch = draw_scenes("test", 45)
    drawn, group = render(batch, size=64), labelled_scenes(batch, 64, first=7)
    shares = drawn.visible_shares()
    assert [scene.number for scene in group] == list(range(7, 52))
    singles = copies = 0
    for index, scene in enumerate(group):
        count = len(scene.labels)
        assert scene.truth.dtype == torch.int64
        assert scene.truth.unique().tolist() == list(range(count + 1))
        numbers = torch.tensor([0, *[label + 1 for label in scene.labels]])
        assert torch.equal(numbers[scene.truth], drawn.masks[index].long())
        for place, label in enumerate(scene.labels):
            pixels = int((scene.truth == place + 1).sum())
            assert pixels > 0
            assert scene.area[place] == pytest.approx(pixels / 64**2)
            assert 0 < scene.visible[place] <= 1
            slots = np.flatnonzero(batch.labels[index] == label)
            if len(slots) == 1:
                singles += 1
                seen = float(shares[index, slots[0]])
                assert scene.visible[place] == pytest.approx(seen, abs=1e-6)
            else:
                copies += 1
                whole = int(drawn.areas[index, slots].sum())
                assert scene.visible[place] == pytest.approx(pixels / whole)
        said = batch.captions[index].removeprefix("a photo of ").split(", ")
        assert scene.names == [name for name in said if name in scene.names]
        assert {label for label in batch.labels[index] if label >= 0} >= set(scene.labels)
        pixels = np.asarray(scene.image).transpose(2, 0, 1) / 255
        assert np.abs(pixels - drawn.images[index].numpy()).max() <= 0.5 / 255 + 1e-6
    assert singles > 50
    assert copies > 0
    assert any(scene.names != sorted(scene.names) for scene in group)


def test_classes_stand_in_the_order_of_captions_or_of_the_class_list():
    batch = draw_scenes("test", 12)
    turned = replace(batch, order=batch.order[:, ::-1].copy())
    named, other = labelled_scenes(batch, 64), labelled_scenes(turned, 64)
    listed = labelled_scenes(batch, 64, class_order=True)
    for scene, backward, ordered in zip(named, other, listed, strict=True):
        assert list(ordered.labels) == sorted(scene.labels)
        present = batch.labels[scene.number][batch.labels[scene.number] >= 0].tolist()
        if len(set(present)) == len(present):  # no class stands twice
            assert backward.labels == scene.labels[::-1]
        for again in (backward, ordered):
            assert (again.image, again.number) == (scene.image, scene.number)
            for label in scene.labels:
                before, after = scene.labels.index(label), again.labels.index(label)
                assert again.area[after] == scene.area[before]
                assert again.visible[after] == scene.visible[before]
                assert torch.equal(again.truth == after + 1, scene.truth == before + 1)


def test_what_is_wholly_hidden_is_not_asked_for():
    batch = sample_scenes("val", 0, 1, objects=3)
    centres, sizes = batch.centres.copy(), batch.sizes.copy()
    centres[0, :3], sizes[0, :3] = ((0.25, 0.25), (0.7, 0.7), (0.7, 0.7)), (0.3, 0.03, 0.5)
    hidden = replace(batch, centres=centres, sizes=sizes)
    assert render(hidden, size=64).visible_shares()[0, 1] == 0
    (scene,) = labelled_scenes(hidden, 64)
    assert set(scene.labels) == set(batch.labels[0, [0, 2]].tolist())
    assert scene.truth.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12])
def test_scenes_are_of_two_three_and_four_objects_in_equal_parts(count):
    batch = draw_scenes("val", count)
    assert len(batch) == count
    objects = (batch.labels >= 0).sum(1)
    parts = np.bincount(objects, minlength=5)
    assert parts[:2].sum() == 0
    assert parts[2:].max() - parts[2:].min() <= 1
    assert (np.diff(objects) >= 0).all()
