"""Scenes: the same by every road, true masks, true captions, known frequencies."""

import json
import re
from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image

from pixalign.scenes import stress as stress_room
from pixalign.scenes.atlas import (
    CELL,
    DATA,
    STYLES,
    class_names,
    plurals,
    sprites,
    training_ranks,
    training_shares,
)
from pixalign.scenes.render import render
from pixalign.scenes.sample import (
    CHUNK,
    COLOURS,
    LARGE,
    MAX_WORDS,
    PREFIX,
    SMALL,
    SPLITS,
    SceneBatch,
    attribute_captions,
    full_captions,
    sample_scenes,
)
from pixalign.scenes.stress import DIALS, MAX_COPIES, OTHER, TARGET, stress
from pixalign.scenes.write import write_scenes


def same(left, right):
    return all(
        np.array_equal(getattr(left, field.name), getattr(right, field.name))
        for field in fields(SceneBatch)
    )


@pytest.fixture(scope="module")
def train():
    return sample_scenes("train", 0, 20_000)


@pytest.fixture(scope="module")
def test():
    return sample_scenes("test", 0, 20_000)


# The atlas


def test_atlas_is_small_and_licensed():
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 3_000_000
    text = (DATA / "LICENSES.md").read_text(encoding="utf-8")
    assert "SIL OPEN FONT LICENSE Version 1.1" in text
    assert "Permission is hereby granted, free of charge, to any person obtaining a copy" in text
    assert "Copyright (c) Microsoft Corporation" in text
    for style in STYLES:
        assert f"{style}.webp" in text


def test_names_are_plain_and_distinct():
    names = class_names()
    assert 104 <= len(names) <= 112
    assert len(set(names)) == len(set(plurals())) == len(names) == len(plurals())
    for name in (*names, *plurals()):
        assert re.fullmatch(r"[a-z]+( [a-z]+)?", name)
    # A caption's words must not mean two things.
    assert not set(names) & {*COLOURS, "small", "large", "two", "three"}


def test_every_drawing_fills_its_cell():
    drawings = sprites()
    assert drawings.shape == (len(class_names()), len(STYLES), 4, CELL, CELL)
    assert drawings.dtype == torch.uint8
    solid = drawings[:, :, 3] > 127
    height, width = solid.any(-1).sum(-1), solid.any(-2).sum(-1)
    assert torch.maximum(height, width).min() >= 0.85 * CELL  # a soft glow may take the rest
    covered = solid.float().mean((-2, -1))
    assert 0.08 < covered.min() < covered.max() < 0.9
    rows = json.loads((DATA / "classes.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in rows] == list(class_names())


def test_training_shares_follow_zipf():
    shares = training_shares()
    assert shares.sum() == pytest.approx(1)
    assert shares.min() > 0.0015
    falling = np.sort(shares)[::-1]
    np.testing.assert_allclose(falling / falling[0], np.arange(1, len(shares) + 1) ** -0.8)
    assert sorted(training_ranks()) == list(range(len(shares)))
    assert np.argmax(shares) == np.argmin(training_ranks())


# Sampling


def test_scene_is_the_same_in_any_batch():
    start, count = CHUNK - 7, CHUNK + 20  # over three chunks
    whole = sample_scenes("train", start, count)
    assert len(whole) == count
    assert same(whole, sample_scenes("train", start, count))
    for index in (0, 6, 7, 8, CHUNK + 6, CHUNK + 7, count - 1):
        assert same(whole[index : index + 1], sample_scenes("train", start + index, 1))


def test_splits_differ():
    assert tuple(SPLITS) == ("train", "val", "test")
    batches = [sample_scenes(split, 0, 64) for split in SPLITS]
    for index, left in enumerate(batches):
        for right in batches[:index]:
            assert not np.isclose(left.backgrounds, right.backgrounds).all(1).any()


def test_ranges_and_types(train):
    full = train.labels >= 0
    assert train.labels.max() < len(class_names())
    assert (np.diff(full.astype(int), axis=1) <= 0).all()  # empty slots come last
    counts = np.bincount(full.sum(1), minlength=5) / len(train)
    assert counts[0] == 0
    assert counts[1] == pytest.approx(0.12, abs=0.01)
    assert counts[2:].min() > 0.25
    assert train.sizes[full].min() >= np.float32(0.15)
    assert train.sizes[full].max() <= np.float32(0.65)
    assert np.quantile(train.sizes[full], 0.95) > 0.5
    assert train.centres.min() > 0
    assert train.centres.max() < 1
    assert np.abs(train.angles).max() <= np.deg2rad(25)
    assert train.flips[full].mean() == pytest.approx(0.5, abs=0.01)
    assert train.styles[full].mean() == pytest.approx(0.5, abs=0.01)
    assert (train.tints[full] > 0).mean() == pytest.approx(0.15, abs=0.01)
    assert set(train.tints[full]) == set(range(len(COLOURS)))
    for name in ("centres", "sizes", "angles", "backgrounds"):
        assert getattr(train, name).dtype == np.float32


def test_at_least_85_percent_show_several_classes(train):
    distinct = np.array([len(set(row[row >= 0])) for row in train.labels])
    copies = (train.labels >= 0).sum(1) - distinct
    assert (distinct >= 2).mean() >= 0.85
    assert 0.05 < (copies > 0).mean() < 0.15
    assert copies.max() == 2


@pytest.mark.parametrize("objects", [1, 2, 3, 4])
def test_number_of_objects_can_be_forced(objects):
    batch = sample_scenes("val", 300, 100, objects=objects)
    assert ((batch.labels >= 0).sum(1) == objects).all()


def test_classes_follow_their_training_shares(train):
    """Counted against the multinomial's own spread: systematic sampling varies no more."""
    labels = train.labels[train.labels >= 0]
    expected = training_shares() * len(labels)
    counts = np.bincount(labels, minlength=len(expected))
    deviations = (counts - expected) / np.sqrt(expected)
    assert np.abs(deviations).max() < 4.5
    assert np.sqrt((deviations**2).mean()) < 1.3
    assert np.abs(counts / expected - 1)[expected > 1000].max() < 0.08


def test_classes_are_uniform_in_test(test):
    labels = test.labels[test.labels >= 0]
    counts = np.bincount(labels, minlength=len(class_names()))
    assert np.abs(counts / counts.mean() - 1).max() < 0.25
    assert counts.std() / np.sqrt(counts.mean()) < 1.3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"split": "dev"}, "split is 'dev'; allowed: 'train', 'val', 'test'"),
        ({"objects": 5}, "objects is 5; allowed: 1, 2, 3, 4"),
        ({"start": -1}, "start is -1"),
        ({"count": 0}, "count is 0"),
    ],
)
def test_wrong_requests_say_what_is_allowed(wrong, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        sample_scenes(**{"split": "train", "start": 0, "count": 1, **wrong})


# Captions


def parts(caption):
    assert caption.startswith(PREFIX)
    return caption.removeprefix(PREFIX).split(", ")


def test_full_captions_name_every_class_once(train, test):
    for batch in (train[:2000], test[:2000]):
        for caption, labels in zip(full_captions(batch), batch.labels, strict=True):
            named = parts(caption)
            assert len(named) == len(set(named))
            assert set(named) == {class_names()[label] for label in labels[labels >= 0]}
    assert list(test.captions) == full_captions(test)


def test_order_of_names_tells_nothing_about_depth(train):
    several = (train.labels >= 0).all(1)
    first = train.order[several, 0]
    assert np.abs(np.bincount(first) / several.sum() - 0.25).max() < 0.03


def test_training_captions_have_their_shares(train):
    full, rich = full_captions(train), attribute_captions(train)
    kinds = {"empty": 0, "one": 0, "rich": 0, "full": 0}
    for caption, whole, described in zip(train.captions, full, rich, strict=True):
        if not caption:
            kinds["empty"] += 1
        elif caption == whole:
            kinds["full"] += 1
        elif caption == described:
            kinds["rich"] += 1
        else:
            kinds["one"] += 1
            assert caption.removeprefix(PREFIX) in parts(whole)
    shares = {kind: count / len(train) for kind, count in kinds.items()}
    assert shares["empty"] == pytest.approx(0.10, abs=0.01)
    assert shares["one"] == pytest.approx(0.17, abs=0.012)
    assert shares["full"] >= 0.60
    assert 0.04 < shares["rich"] <= 0.11  # some have no attribute to tell and count as full


def test_captions_are_short(train):
    for caption in (*train.captions, *attribute_captions(train)):
        assert len(re.findall(r"[a-z]+|,", caption)) <= MAX_WORDS <= 20


def test_attributes_are_true(train):
    """Read the captions back with a parser of their own."""
    seen = set()
    for index, caption in enumerate(attribute_captions(train[:4000])):
        labels, sizes = train.labels[index], train.sizes[index]
        for phrase in parts(caption):
            words = phrase.split()
            count = {"two": 2, "three": 3}.get(words[0])
            words = words[1:] if count else words
            size = words.pop(0) if words[0] in ("small", "large") else None
            colour = words.pop(0) if words[0] in COLOURS else None
            noun = " ".join(words)
            label = (plurals() if count else class_names()).index(noun)
            slots = np.flatnonzero(labels == label)
            assert len(slots) == count or (count is None and len(slots) >= 1)
            if size == "small":
                assert (sizes[slots] < SMALL).all()
            if size == "large":
                assert (sizes[slots] > LARGE).all()
            if colour:
                assert (train.tints[index, slots] == COLOURS.index(colour)).all()
            seen |= {count, size, colour}
    assert seen == {None, 2, 3, "small", "large", *COLOURS[1:]}


# Painting


def composed(batch, scene, size):
    """Slots of one scene by Pillow: drawings turned one by one and laid over each other."""
    slots = np.zeros((size, size), dtype=np.uint8)
    unsure = np.zeros((size, size), dtype=bool)
    big = 4 * size
    for slot, label in enumerate(batch.labels[scene]):
        if label < 0:
            continue
        style = batch.styles[scene, slot]
        alpha = Image.fromarray(sprites()[label, style, 3].numpy())
        if batch.flips[scene, slot]:
            alpha = alpha.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        side = round(float(batch.sizes[scene, slot]) * big)
        alpha = alpha.resize((side, side), Image.Resampling.BICUBIC)
        # Pillow turns against the clock, in a picture whose y points down.
        degrees = -np.rad2deg(float(batch.angles[scene, slot]))
        alpha = alpha.rotate(degrees, Image.Resampling.BICUBIC, expand=True)
        y, x = batch.centres[scene, slot] * big
        canvas = Image.new("L", (big, big))
        canvas.paste(alpha, (round(x - alpha.width / 2), round(y - alpha.height / 2)))
        alpha = np.asarray(canvas.resize((size, size), Image.Resampling.BOX))
        slots[alpha > 127] = slot + 1
        unsure |= (alpha > 25) & (alpha < 230)
    return slots, unsure


def test_masks_match_an_independent_composition():
    batch = sample_scenes("test", 40, 12)
    painted = render(batch, 128)
    for scene in range(len(batch)):
        expected, unsure = composed(batch, scene, 128)
        slots = painted.slots[scene].numpy()
        wrong = slots != expected
        assert wrong[~unsure].sum() <= 0.002 * wrong.size
        for slot in range(1, slots.max() + 1):
            both = ((slots == slot) & (expected == slot)).sum()
            assert both / ((slots == slot) | (expected == slot)).sum() > 0.9
        labels = np.concatenate([[0], batch.labels[scene] + 1])
        np.testing.assert_array_equal(painted.masks[scene].numpy(), labels[slots])


def test_pictures_are_in_range_and_backgrounds_smooth():
    batch = sample_scenes("train", 0, 64)
    painted = render(batch)
    assert painted.images.shape == (64, 3, 128, 128)
    assert painted.images.dtype == torch.float32
    assert painted.masks.dtype == painted.slots.dtype == torch.uint8
    assert painted.images.min() >= 0
    assert painted.images.max() <= 1
    assert painted.images.amax((1, 2, 3)).std() > 0
    far = torch.nn.functional.max_pool2d((painted.slots > 0).float(), 9, 1, 4) == 0
    step = (painted.images[..., 1:] - painted.images[..., :-1]).abs().amax(1)
    assert step[far[..., 1:] & far[..., :-1]].max() < 0.06  # a soft glow may reach this far


def test_painting_does_not_depend_on_the_batch():
    batch = sample_scenes("val", 0, 9)
    together, alone = render(batch, 96), render(batch[4:5], 96)
    torch.testing.assert_close(together.images[4:5], alone.images, atol=1e-5, rtol=0)
    assert torch.equal(together.slots[4:5], alone.slots)


def test_painting_keeps_its_precision_in_a_training_script():
    batch = sample_scenes("val", 0, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = render(batch)
    torch.testing.assert_close(inside.images, render(batch).images, atol=0, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_painting_is_the_same_on_a_gpu():
    batch = sample_scenes("val", 0, 64)
    here, there = render(batch), render(batch, device="cuda")
    assert (here.images - there.images.cpu()).abs().mean() < 1e-4
    assert (here.masks != there.masks.cpu()).float().mean() < 1e-4


def test_objects_are_visible_and_some_are_occluded():
    batch = sample_scenes("train", 0, 256)
    visible = render(batch, 64).visible_shares().numpy()[batch.labels >= 0]
    assert visible.min() > 0.2
    assert 0.04 < (visible < 0.95).mean() < 0.25


def test_tints_change_the_colour_and_keep_the_shading():
    batch = sample_scenes("val", 0, 32, objects=1)
    plain = SceneBatch(**{**vars(batch), "tints": np.zeros_like(batch.tints)})
    natural = render(plain)
    inside = (natural.slots == 1).float()
    brightness = {}
    for tint, name in enumerate(COLOURS[1:], start=1):
        tinted = render(SceneBatch(**{**vars(batch), "tints": np.full_like(batch.tints, tint)}))
        assert torch.equal(tinted.slots, natural.slots)
        total = (tinted.images * inside[:, None]).sum((0, 2, 3)) / inside.sum()
        brightness[name] = total
        for scene in range(8):
            chosen = inside[scene].bool()
            before = natural.images[scene][:, chosen].mean(0)
            after = tinted.images[scene][:, chosen].mean(0)
            assert torch.corrcoef(torch.stack([before, after]))[0, 1] > 0.7
    assert brightness["red"].argmax() == 0
    assert brightness["green"].argmax() == 1
    assert brightness["blue"].argmax() == 2
    assert brightness["yellow"].argmin() == 2
    assert brightness["purple"].argmin() == 1


# Stress


@pytest.mark.parametrize("dial", DIALS)
def test_level_zero_is_the_base_scene(dial):
    base = stress("size", 0, 250, 20)
    assert same(base, stress(dial, 0, 250, 20))
    assert same(base[3:4], stress(dial, 0, 253, 1))
    assert ((base.labels >= 0).sum(1) == 2).all()
    assert (training_ranks()[base.labels[:, TARGET]] < stress_room.FREQUENT).all()
    assert render(base, 64).visible_shares()[:, TARGET].min() > 0.97


def test_size_shrinks_the_target_alone():
    areas = [render(stress("size", level, 0, 16), 128).areas for level in (0, 0.5, 1)]
    assert (areas[1][:, TARGET] < 0.5 * areas[0][:, TARGET]).all()
    assert (areas[2][:, TARGET] < 0.25 * areas[1][:, TARGET]).all()
    assert (areas[2][:, TARGET] > 5).all()
    assert torch.equal(areas[0][:, OTHER], areas[2][:, OTHER])


def test_occlusion_hides_the_target():
    levels = np.linspace(0, 1, 6)
    visible = torch.stack(
        [render(stress("occlusion", x, 0, 48), 64).visible_shares()[:, TARGET] for x in levels]
    )
    means = visible.mean(1)
    assert (means.diff() < -0.02).all()
    assert means[-1] < 0.45


def test_copies_are_added_behind_the_target():
    before, after = stress("copies", 0, 0, 32), stress("copies", 1, 0, 32)
    assert (after.labels[:, :MAX_COPIES] == after.labels[:, [OTHER]]).all()
    half = (stress("copies", 0.5, 0, 32).labels >= 0).sum(1)
    assert (half == 2 + round(0.5 * MAX_COPIES)).all()
    assert before.captions == after.captions
    painted = render(after, 64)
    assert painted.visible_shares()[:, TARGET].min() > 0.97
    assert painted.visible_shares()[:, :MAX_COPIES].mean() > 0.85


def test_rarity_replaces_the_target():
    base, rare = stress("rarity", 0, 0, 256), stress("rarity", 1, 0, 256)
    count = len(class_names())
    assert (training_ranks()[rare.labels[:, TARGET]] >= count - stress_room.FREQUENT - 1).all()
    np.testing.assert_array_equal(base.labels[:, OTHER], rare.labels[:, OTHER])
    for level in np.linspace(0, 1, 12):
        labels = stress("rarity", level, 0, 256).labels
        assert (labels[:, TARGET] != labels[:, OTHER]).all()
    assert len(set(rare.labels[:, TARGET])) >= stress_room.FREQUENT


def test_wrong_dials_say_what_is_allowed():
    with pytest.raises(ValueError, match="dial is 'blur'; allowed: 'size', 'occlusion'"):
        stress("blur", 0.5, 0, 1)
    with pytest.raises(ValueError, match="level is 2; allowed: 0 to 1"):
        stress("size", 2, 0, 1)


# Files


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
                assert own[y0].any()
                assert own[y1 - 1].any()
                assert own[:, x0].any()
                assert own[:, x1 - 1].any()
    assert Image.open(tmp_path / "out" / "sheet.png").width > 96


def test_a_hidden_object_has_no_box():
    from pixalign.scenes.write import describe

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
