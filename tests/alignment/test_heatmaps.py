"""Layers to heatmaps: weights by hand, and each step against a plain loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from pixalign.alignment.collect import self_labels
from pixalign.alignment.heatmaps import activation, refine, to_image
from pixalign.attention import text_layers
from pixalign.attention.layers import combine_layers, layer_weights
from pixalign.backbones import wrap
from pixalign.core.maps import resize
from pixalign.core.values import Layers

SD15 = [1, 1, 2, 2, 4, 4, 8, 4, 4, 4, 2, 2, 2, 1, 1, 1]  # factors of SD1.5's 16 cross layers


def layers_of(factors, middle=0.0):
    return Layers(tuple(f"layer {i}" for i in range(len(factors))), tuple(factors), middle)


def test_shares_of_resolutions_on_sd15():
    weights = layer_weights(layers_of(SD15, 6), "resolution")
    shares = {
        factor: sum(w for w, f in zip(weights, SD15, strict=True) if f == factor) / sum(weights)
        for factor in (8, 4, 2, 1)
    }
    assert [round(100 * shares[f]) for f in (8, 4, 2, 1)] == [20, 67, 7, 7]


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([2, 4, 4, 2], [1, 15, 15, 1]),  # SDXL
        ([2, 2, 2], [15, 15, 15]),  # SD3: a plain mean
        ([1, 2, 4], [1, 10, 15]),
        ([1, 2, 4, 8, 16], [1, 1, 1, 10, 15]),
    ],
)
def test_weights_by_rank_of_resolution(factors, expected):
    assert layer_weights(layers_of(factors), "resolution") == expected


def test_gaussian_weights():
    weights = layer_weights(layers_of([1, 2, 4, 2, 1], 2), "gaussian")
    assert weights == pytest.approx([math.exp(-((i - 2) ** 2) / 18) for i in range(5)])


def test_own_weights_must_match_the_resolutions():
    layers = layers_of([1, 2, 2])
    assert layer_weights(layers, (3.0, 7.0)) == [7, 3, 3]
    assert layer_weights(layers, "uniform") == [1, 1, 1]
    with pytest.raises(ValueError, match="3 weights, the model has 2 resolutions"):
        layer_weights(layers, (1.0, 1.0, 1.0))


@given(st.integers(0, 1000))
def test_combined_layers_equal_a_plain_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    factors = (1, 2, 4, 2, 1)
    layers = tuple(torch.rand(3, 12 // f, 20 // f, generator=generator) for f in factors)
    found = combine_layers(layers, layers_of(factors, 2), "resolution")

    total, expected = 0.0, torch.zeros(3, 12, 20)
    for layer, weight in zip(layers, (1, 10, 15, 10, 1), strict=True):
        enlarged = interpolate(layer[None], (12, 20), mode="bilinear", align_corners=False)[0]
        expected += weight * enlarged
        total += weight
    torch.testing.assert_close(found, expected / total)


def test_refinement_is_a_matrix_product_per_class():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(3, 4, 6, generator=generator)
    first, second = torch.rand(2, 24, 24, generator=generator)
    found = refine(maps, (first, second), (4, 6))

    for index in range(3):
        expected = second @ (first @ maps[index].flatten())
        torch.testing.assert_close(found[index].flatten().float(), expected)


def test_refinement_moves_to_the_self_attention_grid():
    maps = torch.rand(2, 4, 6)
    found = refine(maps, (torch.eye(8 * 12),), (8, 12))
    torch.testing.assert_close(found.float(), resize(maps, (8, 12)))
    assert refine(maps, (), (8, 12)) is maps


def test_refinement_in_portions(monkeypatch):
    maps, matrix = torch.rand(2, 5, 5), torch.rand(25, 25)
    whole = refine(maps, (matrix,), (5, 5))
    monkeypatch.setattr("pixalign.alignment.heatmaps._ROWS_AT_ONCE", 7)
    torch.testing.assert_close(refine(maps, (matrix,), (5, 5)), whole)


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 40))
def test_heatmaps_fill_zero_to_one(seed, height, width):
    maps = torch.rand(3, 6, 4, generator=torch.Generator().manual_seed(seed))
    found = to_image(maps, (height, width))
    assert found.shape == (3, height, width)
    assert found.dtype == torch.float32
    assert found.min() >= 0
    assert found.max() <= 1
    if height * width > 1:
        assert torch.equal(found.amax((1, 2)), torch.ones(3))
        assert torch.equal(found.amin((1, 2)), torch.zeros(3))


def test_height_and_width_are_not_swapped():
    maps = torch.zeros(1, 2, 4)
    maps[0, 0, 3] = 1  # top right
    found = to_image(maps, (20, 80))[0]
    row, column = np.unravel_index(int(found.argmax()), found.shape)
    assert row < 10
    assert column > 60


def test_activation_is_peak_over_mean():
    maps = torch.tensor([[[1.0, 1.0]], [[0.0, 4.0]], [[0.0, 0.0]]])
    assert activation(maps).tolist() == [1, 2, 0]


def places(pipe, choice, image_only=False):
    sites = wrap(pipe).sites
    labels = self_labels(sites, choice, image_only)
    return [(site.kind, site.place, site.factor, label) for site, label in labels.items()]


def test_self_attention_layers_are_those_of_highest_resolution(pipeline):
    assert places(pipeline("sd1"), "once") == [
        ("self", "down", 1, "all"),
        ("self", "up", 1, "all"),
        ("self", "up", 1, "all"),
    ]
    assert {label for *_, label in places(pipeline("sd1"), "up-after-all")} == {"down", "up"}
    assert {factor for *_, factor, _ in places(pipeline("sdxl"), "once")} == {2}
    assert places(pipeline("sd1"), "none") == []


def test_image_only_layers_take_part_when_asked(pipeline):
    assert {kind for kind, *_ in places(pipeline("sd3.5"), "once")} == {"joint"}
    assert {kind for kind, *_ in places(pipeline("sd3.5"), "once", True)} == {"joint", "self"}


def test_middle_layer(pipeline):
    found = {name: text_layers(wrap(pipeline(name)).sites) for name in ("sd1", "sd3")}
    assert found["sd1"].factors == (1, 2, 4, 8, 4, 4, 2, 2, 1, 1)
    assert found["sd1"].middle == 3
    assert found["sd3"].middle == 1


def test_names_of_layers_in_the_order_in_which_they_run(pipeline):
    found = {name: text_layers(wrap(pipeline(name)).sites).names for name in ("sd1", "sd3")}
    assert found["sd1"] == (
        "down-1-1", "down-2-1", "down-4-1", "mid-8-1",
        "up-4-1", "up-4-2", "up-2-1", "up-2-2", "up-1-1", "up-1-2",
    )  # fmt: skip
    assert found["sd3"] == ("joint-2-1", "joint-2-2", "joint-2-3")


def test_names_of_layers_on_every_family(any_pipe):
    backbone = wrap(any_pipe)
    layers = text_layers(backbone.sites)
    reading = [site for site in backbone.sites if site.reads_text]
    assert len(layers) == len(layers.factors) == len(reading)
    assert len(set(layers.names)) == len(layers)
    for name, site in zip(layers.names, reading, strict=True):
        assert name.startswith(f"{site.place}-{site.factor}-")
    assert any(name.startswith("mid-") for name in layers.names) == (backbone.family != "sd3")


@pytest.mark.parametrize("chosen", range(5))
def test_a_named_layer_is_taken_alone(chosen):
    layers = layers_of((1, 2, 4, 2, 1), 2)
    cross = tuple(
        torch.rand(3, 12 // f, 20 // f, generator=torch.Generator().manual_seed(i))
        for i, f in enumerate(layers.factors)
    )
    scheme = {f"layer {chosen}": 1}
    assert layer_weights(layers, scheme) == [float(i == chosen) for i in range(5)]
    found = combine_layers(cross, layers, scheme)
    torch.testing.assert_close(found, resize(cross[chosen], (12, 20)))


def test_named_layers_are_weighted():
    layers = layers_of((1, 2, 2))
    cross = tuple(torch.rand(1, 4, 4) for _ in range(3))
    found = combine_layers(cross, layers, {"layer 2": 3, "layer 1": 1.0, "layer 0": 0})
    torch.testing.assert_close(found, (cross[1] + 3 * cross[2]) / 4)


def test_an_unknown_layer_is_refused_with_the_names_there_are():
    message = "a layer in cross_weights is 'up-9-1'; allowed: 'layer 0', 'layer 1'"
    with pytest.raises(ValueError, match=message):
        layer_weights(layers_of((1, 2)), {"layer 0": 1.0, "up-9-1": 1.0})
