"""Painted scenes: true masks, whatever the batch and the device."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from pixalign.scenes.atlas import sprites
from pixalign.scenes.render import render
from pixalign.scenes.sample import COLOURS, sample_scenes


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
    assert 0 <= painted.images.min() < painted.images.max() <= 1
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
    natural = render(replace(batch, tints=np.zeros_like(batch.tints)))
    inside = (natural.slots == 1).float()
    brightness = {}
    for tint, name in enumerate(COLOURS[1:], start=1):
        tinted = render(replace(batch, tints=np.full_like(batch.tints, tint)))
        assert torch.equal(tinted.slots, natural.slots)
        brightness[name] = (tinted.images * inside[:, None]).sum((0, 2, 3)) / inside.sum()
        for scene in range(8):
            chosen = inside[scene].bool()
            before = natural.images[scene][:, chosen].mean(0)
            after = tinted.images[scene][:, chosen].mean(0)
            assert torch.corrcoef(torch.stack([before, after]))[0, 1] > 0.7
    assert [brightness[name].argmax() for name in ("red", "green", "blue")] == [0, 1, 2]
    assert brightness["yellow"].argmin() == 2
    assert brightness["purple"].argmin() == 1
