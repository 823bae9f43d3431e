"""Compiled passes: the same numbers and attention, and a pipeline left as it is."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pixalign as pa
import tiny
import zoo
from helpers import (
    assert_close,
    equal,
    everything,
    inputs,
    model_of,
    pictures,
    refuse_above,
)
from pixalign.attention import AttentionReader
from pixalign.attention import compiled as compiled_code
from pixalign.attention.tap import tapped
from pixalign.core.batching import BatchSize


@pytest.fixture
def uncompiled():
    """Everything that compiling changes but the compiled code itself, which takes long."""
    with torch.compiler.set_stance("force_eager"):
        yield


class Backend:
    """A compiler that changes nothing and counts the shapes it is asked for."""

    def __init__(self):
        self.shapes = []

    def __call__(self, graph, inputs):
        self.shapes.append(
            next(tuple(each.shape) for each in inputs if getattr(each, "ndim", 0) == 4)
        )
        return graph.forward


def epsilon_batches(backbone, monkeypatch):
    """The sizes of the ELBO's batches, as a list that grows."""
    seen, epsilon = [], backbone.epsilon

    def spy(z, *rest):
        seen.append(len(z))
        return epsilon(z, *rest)

    monkeypatch.setattr(backbone, "epsilon", spy)
    return seen


@pytest.mark.parametrize("name", ["sd1", "sd3"])
def test_compiled_passes_give_the_same_and_leave_the_pipeline_alone(wide, monkeypatch, name):
    """One compilation serves batches of all sizes. A UNet's takes seconds."""
    pipe, backend = wide(name), Backend()
    budget = {"elbo_steps": 3, "collect_steps": 2}
    images, classes = pictures((40, 30), (30, 50)), ["dog", "zebra", "car"]
    plain = model_of(pipe, config=pa.AlignConfig(**budget), batch_size=8)
    expected = plain.align(images[0], classes)
    before, denoiser = everything(pipe), plain.backbone.denoiser
    compiled = model_of(pipe, config=plain.config, batch_size=8, compile=backend)
    seen = epsilon_batches(compiled.backbone, monkeypatch)
    collected = heard_batches(monkeypatch)

    found = compiled.align(images[0], classes)
    assert seen == [5, 4]
    assert set(collected) == {2}
    assert len(backend.shapes) == 1
    assert_close(found, expected)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-6)
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=1e-6)

    # Other pictures, classes, noise and numbers of passes are of the same code.
    each = [["dog"], ["tree", "hot dog"]]
    for one, alone in zip(
        compiled.align(images, each, seed=4), plain.align(images, each, seed=4), strict=True
    ):
        assert_close(one, alone)
    single = pa.AlignConfig.uncalibrated(collect_steps=1)
    heat, reference = (a.align(images[1], each[1], config=single) for a in (compiled, plain))
    assert_close(heat, reference)
    assert reference.heatmaps.std() > 0.01
    assert collected[-1] == 1
    assert len(backend.shapes) == 1

    assert compiled.backbone.compiled
    assert not plain.backbone.compiled
    assert compiled.backbone.denoiser is plain.backbone.denoiser is denoiser
    after = everything(pipe)
    assert all(equal(before[key], after[key]) for key in before)
    again = plain.align(images[0], classes)
    assert np.array_equal(again.losses, expected.losses)
    assert np.array_equal(again.heatmaps, expected.heatmaps)
    assert len(backend.shapes) == 1


def heard_batches(monkeypatch):
    """The rows of each layer that compiled code told of, as a list that grows."""
    seen, observe = [], AttentionReader._observe

    def spy(self, site, call, grid):
        if torch.compiler.is_compiling() or getattr(compiled_code._LISTENING, "listener", None):
            seen.append(len(call.query))
        return observe(self, site, call, grid)

    monkeypatch.setattr(AttentionReader, "_observe", spy)
    return seen


def test_compiled_attention_is_that_of_every_layer(pipeline):
    """Each layer's queries and keys, and what is attended to, as the uncompiled network has."""
    pipe = pipeline("sd1")
    plain, compiled = (model_of(pipe, compile=c).backbone for c in (False, "eager"))
    told = {}

    def listener(name):
        def hear(site, call, grid):
            told.setdefault(name, []).append((site.place, site.factor, grid, call))

        return hear

    given = inputs(plain)
    with tapped(plain, plain.sites, listener("plain")):
        plain.predict(*given)
    with tapped(compiled, compiled.sites, listener("compiled"), None, compiled.compiled_code):
        compiled.predict(*given)
    assert len(told["plain"]) == len(told["compiled"]) == len(plain.sites)
    for (*where, call), (*there, heard) in zip(told["plain"], told["compiled"], strict=True):
        assert where == there
        assert call.scale == heard.scale
        for part in ("query", "key", "value"):
            torch.testing.assert_close(getattr(heard, part), getattr(call, part))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(zoo.cases()))
def test_every_family_is_read_compiled(name, monkeypatch):
    """HiDream's code is no whole graph: its attention is read uncompiled."""
    torch.compiler.reset()  # each code may be compiled a few times a process
    pipe, config = zoo.built(name), pa.AlignConfig(elbo_steps=2, collect_steps=2, method="dense")
    expected = model_of(pipe, config=config).align(tiny.photo(40, 30), ["dog", "car"])
    compiled = model_of(pipe, config=config, compile="eager")
    seen = heard_batches(monkeypatch)
    found = compiled.align(tiny.photo(40, 30), ["dog", "car"])
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=1e-3)  # rounding, enlarged
    layers = len(compiled.backbone.compiled_code.layers)
    if compiled.backbone.family == "hidream":
        assert layers < len(compiled.backbone.sites)
    else:
        assert len(seen) >= len({s.module for s in compiled.backbone.sites if s.reads_text})


def test_layers_that_compiled_code_does_not_show_are_read_uncompiled(wide, monkeypatch):
    """As of a network whose code is no whole graph."""
    pipe, config = wide("sd3"), pa.AlignConfig(elbo_steps=2, collect_steps=2)
    expected = model_of(pipe, config=config).align(tiny.photo(40, 30), ["dog", "car"])
    monkeypatch.setattr(compiled_code, "_plain", lambda args, kwargs: None)
    compiled = model_of(pipe, config=config, compile="eager")
    seen = heard_batches(monkeypatch)
    assert_close(compiled.align(tiny.photo(40, 30), ["dog", "car"]), expected)
    assert not seen
    assert not compiled.backbone.compiled_code.layers


def test_compiling_is_asked_for(sd1, sd1_folder, uncompiled):
    assert not model_of(sd1).backbone.compiled
    assert not model_of(sd1_folder, device="cpu").backbone.compiled
    assert model_of(sd1, compile=True).backbone.compiled
    assert model_of(sd1, compile="eager").backbone.compiled
    with pytest.raises(RuntimeError, match="'gcc'"):
        model_of(sd1, compile="gcc")


# ---- batches ----


@given(st.integers(1, 400), st.integers(1, 70), st.integers(1, 3))
def test_parts_are_alike_and_cover_all_passes(passes, most, rows):
    sizes, latents = [], torch.zeros(1, 1, 1, 1)
    BatchSize(most).each(
        latents, passes, "elbo", lambda first, last: sizes.append((first, last)), rows=rows
    )
    assert [first for first, _ in sizes] == [0, *(last for _, last in sizes[:-1])]
    assert sizes[-1][1] == passes
    lengths = [last - first for first, last in sizes]
    assert max(lengths) <= max(1, most // rows)
    assert len(lengths) == -(-passes // max(1, most // rows))
    assert max(lengths) - min(lengths) <= 1


def test_out_of_memory_with_compiled_passes(wide, uncompiled):
    pipe, seen = wide("sd1"), []
    config = pa.AlignConfig(elbo_steps=6, collect_steps=2)
    expected = model_of(pipe, config=config).align(tiny.photo(40, 30), ["dog", "cat", "car"])
    aligner = model_of(pipe, config=config, batch_size=16, compile="eager")
    warned = pytest.warns(RuntimeWarning, match="out of memory with 9 passes at once")
    with refuse_above(8, pipe.unet, seen), warned:
        found = aligner.align(tiny.photo(40, 30), ["dog", "cat", "car"])
    # The errors first, then attention: nothing is compiled here, so it is read again uncompiled.
    assert seen == [9, 4, 4, 4, 3, 3, 2, 2]
    assert_close(found, expected)


# ---- few shapes ----


def test_compiled_passes_see_few_shapes(pipeline, uncompiled):
    config, pipe = pa.AlignConfig(resize="keep"), pipeline("sd3")
    plain, compiled = (model_of(pipe, config=config, compile=c) for c in (False, "eager"))
    native = compiled.encode(tiny.photo(90, 90)).latents.shape
    assert compiled.encode(tiny.photo(96, 88)).latents.shape == native
    photos = [tiny.photo(width, 64) for width in range(40, 230, 12)]
    few, many = ({a.encode(each).latents.shape for each in photos} for a in (compiled, plain))
    assert len(few) < len(many)
