"""Following the picture's edges: against plain loops, and what must hold of any picture."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pixalign.alignment.edges import (
    EDGES,
    EPSILON,
    RADIUS,
    SAMPLES,
    follow_edges,
    guided,
    window_mean,
)
from pixalign.core.maps import resize


def drawn(classes, height, width, seed=0):
    rng = np.random.default_rng(seed)
    heatmaps = torch.from_numpy(rng.random((classes, height, width))).float()
    return heatmaps, torch.from_numpy(rng.random((3, height, width))).float()


def window(array, y, x, reach):
    """The pixels [P, C] of array [C, H, W] around a place."""
    part = array[:, max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
    return part.reshape(len(array), -1).T


def slow_fit(heatmap, colours, reach, epsilon):
    """Every window's linear model of a heatmap [h, w], averaged: slopes [3, h, w], offsets."""
    height, width = heatmap.shape
    slopes, offsets = np.zeros((3, height, width)), np.zeros((1, height, width))
    for y in range(height):
        for x in range(width):
            seen = window(colours, y, x, reach)
            values = window(heatmap[None], y, x, reach)[:, 0]
            away = seen - seen.mean(0)
            matrix = away.T @ away / len(seen) + epsilon * np.eye(3)
            slopes[:, y, x] = np.linalg.inv(matrix) @ (
                away.T @ (values - values.mean()) / len(seen)
            )
            offsets[0, y, x] = slopes[:, y, x] @ seen.mean(0)
    mean_slopes, mean_offsets = np.zeros_like(slopes), np.zeros_like(heatmap)
    for y in range(height):
        for x in range(width):
            mean_slopes[:, y, x] = window(slopes, y, x, reach).mean(0)
            mean_offsets[y, x] = window(offsets, y, x, reach).mean()
    return mean_slopes, mean_offsets


def slow_pool(array, size):
    """array [C, H, W] averaged to size: each pixel over all that it touches, as torch does."""
    height, width = array.shape[1:]
    pooled = np.zeros((len(array), *size))
    for y in range(size[0]):
        rows = slice(y * height // size[0], math.ceil((y + 1) * height / size[0]))
        for x in range(size[1]):
            columns = slice(x * width // size[1], math.ceil((x + 1) * width / size[1]))
            pooled[:, y, x] = array[:, rows, columns].mean((1, 2))
    return pooled


def slow_guided(heatmaps, picture, cell, radius=RADIUS, epsilon=EPSILON):
    size = heatmaps.shape[1:]
    step = max(1, cell / SAMPLES)
    small = tuple(max(1, round(side / step)) for side in size)
    arrays = heatmaps.double().numpy(), picture.double().numpy()
    followed = []
    for heatmap in arrays[0]:
        values, colours = (slow_pool(a, small) for a in (heatmap[None], arrays[1]))
        slopes, offsets = slow_fit(values[0], colours, round(radius * cell / step), epsilon)
        slopes = resize(torch.from_numpy(slopes), size).numpy()
        offsets = resize(torch.from_numpy(offsets)[None], size)[0].numpy()
        followed.append(heatmap + (slopes * arrays[1]).sum(0) - offsets)
    return torch.from_numpy(np.stack(followed)).clamp(0, 1).float()


@pytest.mark.parametrize(
    ("size", "cell"), [((12, 17), 3), ((9, 5), 2.4), ((25, 31), 12.5), ((1, 7), 2), ((1, 1), 4)]
)
def test_guided_is_the_slow_one(size, cell):
    heatmaps, picture = drawn(2, *size)
    torch.testing.assert_close(
        follow_edges(heatmaps, picture, "guided", cell), slow_guided(heatmaps, picture, cell)
    )


def test_other_settings_are_the_slow_ones():
    heatmaps, picture = drawn(1, 11, 14, seed=1)
    kinds = {"radius": 0.5, "epsilon": 1e-2}
    torch.testing.assert_close(
        guided(heatmaps, picture, 4, **kinds), slow_guided(heatmaps, picture, 4, **kinds)
    )


def test_it_is_the_guided_filter_without_its_blur():
    """He et al.'s q = mean(a) I + mean(b), with b = mean(p) - a mean(I), minus mean(mean(p))."""
    heatmaps, picture = drawn(1, 10, 13, seed=2)
    heatmaps = 0.45 + heatmaps / 10  # far from the clamp
    reach, values = 3, heatmaps[0].double().numpy()
    slopes, offsets = slow_fit(values, picture.double().numpy(), reach, EPSILON)
    blur = window_mean(window_mean(heatmaps.double(), reach), reach)[0].numpy()
    filtered = (slopes * picture.double().numpy()).sum(0) + blur - offsets
    expected = torch.from_numpy(values + filtered - blur)[None].float()
    torch.testing.assert_close(guided(heatmaps, picture, reach), expected)


@pytest.mark.parametrize("reach", [1, 2, 30])
def test_window_mean_by_loops(reach):
    values = drawn(2, 7, 9)[0].double()
    expected = torch.zeros_like(values)
    for y, x in np.ndindex(7, 9):
        expected[:, y, x] = torch.from_numpy(window(values.numpy(), y, x, reach).mean(0))
    torch.testing.assert_close(window_mean(values, reach), expected)


maps_and_cells = st.tuples(
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 12),
    st.floats(0.1, 40),
    st.integers(0, 99),
)


@settings(max_examples=30, deadline=None)
@given(maps_and_cells)
def test_what_holds_of_any_picture(case):
    *shape, cell, seed = case
    heatmaps, picture = drawn(*shape, seed)
    kept = heatmaps.clone(), picture.clone()
    followed = follow_edges(heatmaps, picture, "guided", cell)
    assert followed.shape == heatmaps.shape
    assert followed.dtype == torch.float32
    assert 0 <= followed.min() <= followed.max() <= 1
    assert torch.equal(heatmaps, kept[0])
    assert torch.equal(picture, kept[1])
    # Classes do not see each other.
    order = torch.arange(len(heatmaps)).flip(0)
    assert torch.equal(follow_edges(heatmaps[order], picture, "guided", cell), followed[order])
    # A flat picture has no edges, and a flat heatmap none to be moved.
    flat = torch.full_like(picture, 0.3)
    torch.testing.assert_close(follow_edges(heatmaps, flat, "guided", cell), heatmaps)
    even = torch.full_like(heatmaps, 0.6)
    torch.testing.assert_close(follow_edges(even, picture, "guided", cell), even)


def test_turning_the_picture_turns_the_heatmaps():
    heatmaps, picture = drawn(2, 16, 24, seed=3)
    turned = guided(heatmaps.flip(2).mT, picture.flip(2).mT, 5)
    torch.testing.assert_close(turned, guided(heatmaps, picture, 5).flip(2).mT)


@pytest.mark.parametrize("cell", [4, 8, 16])
def test_a_blurred_disc_becomes_sharp(cell):
    """A disc on a shaded ground, seen through coarse cells: more of its pixels are found."""
    side = 96
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    disc = ((y - 45).square() + (x - 52).square() < 23**2).float()
    ground = torch.stack([0.3 + 0.2 * x / side, 0.5 - 0.2 * y / side, 0.4 + 0 * x])
    colour = torch.tensor([0.8, 0.3, 0.2])[:, None, None]
    picture = disc * colour + (1 - disc) * ground
    maps = torch.nn.functional.avg_pool2d(disc[None], cell)
    heatmaps = resize(maps, (side, side))

    def iou(found):
        mask = found[0] >= 0.5
        return float((mask & (disc > 0)).sum() / (mask | (disc > 0)).sum())

    followed = follow_edges(heatmaps, picture, "guided", cell)
    assert iou(followed) >= 0.99 > iou(heatmaps)
    assert (followed - disc).abs().mean() < 0.5 * (heatmaps - disc).abs().mean()


def test_none_and_cells_of_a_pixel_change_nothing():
    heatmaps, picture = drawn(2, 6, 5)
    assert EDGES[0] == "none"
    assert torch.equal(follow_edges(heatmaps, picture, "none", 3), heatmaps)
    assert torch.equal(follow_edges(heatmaps, picture, "guided", 0.4), heatmaps)


def test_the_fit_does_not_grow_with_the_picture():
    """A picture twice as large, with cells twice as large, asks for the same windows."""
    heatmaps, picture = drawn(1, 40, 48, seed=4)
    once = guided(heatmaps, picture, SAMPLES)
    larger = [maps.repeat_interleave(2, 1).repeat_interleave(2, 2) for maps in (heatmaps, picture)]
    twice = guided(*larger, 2 * SAMPLES)
    pooled = torch.nn.functional.avg_pool2d(twice, 2)
    assert (pooled - once).abs().max() < 0.05


@pytest.mark.parametrize(
    ("heatmaps", "picture", "kind", "cell", "message"),
    [
        ((2, 4, 5), (3, 4, 5), "sharp", 2, "edges is 'sharp'; allowed: 'none', 'guided'"),
        (
            (2, 4, 5),
            (3, 5, 4),
            "guided",
            2,
            r"heatmaps are \(2, 4, 5\) and the picture \(3, 5, 4\)",
        ),
        ((4, 5), (3, 4, 5), "guided", 2, r"heatmaps are \(4, 5\)"),
        ((2, 4, 5), (3, 4, 5), "guided", 0, "cell is 0; allowed: more than 0"),
    ],
)
def test_what_is_not_allowed(heatmaps, picture, kind, cell, message):
    with pytest.raises(ValueError, match=message):
        follow_edges(torch.zeros(heatmaps), torch.zeros(picture), kind, cell)
