"""Compiled passes: the same numbers, two sizes of batches, and a pipeline left as it is."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pixalign as pa
import tiny
from helpers import (
    TEXTS,
    a_visit,
    assert_close,
    equal,
    everything,
    losses,
    model_of,
    pictures,
    refuse_above,
    setting,
)
from pixalign.alignment.elbo import fixed_size
from pixalign.alignment.plan import Passes
from pixalign.core.values import TextCondition


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
        self.shapes.append(next(tuple(each.shape) for each in inputs if each.ndim == 4))
        return graph.forward


def epsilon_batches(backbone, monkeypatch):
    """The sizes of the ELBO's batches, as a list that grows."""
    seen, epsilon = [], backbone.epsilon

    def spy(z, *rest):
        seen.append(len(z))
        return epsilon(z, *rest)

    monkeypatch.setattr(backbone, "epsilon", spy)
    return seen


@pytest.mark.parametrize(("name", "steps", "sizes"), [("sd1", 5, [8, 8]), ("sd3", 3, [8, 1])])
def test_compiled_passes_give_the_same_and_leave_the_pipeline_alone(
    wide, monkeypatch, name, steps, sizes
):
    """Three classes: 15 or 9 passes, the last batch filled up. A UNet's shape takes seconds."""
    pipe, backend = wide(name), Backend()
    budget = {"elbo_steps": steps, "collect_steps": 2}
    images, classes = pictures((40, 30), (30, 50)), ["dog", "zebra", "car"]
    plain = model_of(pipe, config=pa.AlignConfig(**budget), batch_size=8)
    expected = plain.align(images[0], classes)
    before, denoiser = everything(pipe), plain.backbone.denoiser
    compiled = model_of(pipe, config=plain.config, batch_size=8, compile=backend)
    seen = epsilon_batches(compiled.backbone, monkeypatch)

    found = compiled.align(images[0], classes)
    assert seen == sizes
    assert [shape[0] for shape in backend.shapes] == sorted(set(sizes), reverse=True)
    assert_close(found, expected)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-6)
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=1e-6)

    # Other pictures, classes and noise are of the same shapes.
    each = [["dog"], ["tree", "hot dog"]]
    for one, alone in zip(
        compiled.align(images, each, seed=4), plain.align(images, each, seed=4), strict=True
    ):
        assert_close(one, alone)
    assert seen == sizes + sizes
    assert len(backend.shapes) == len(set(sizes))

    # Attention is read from the pipeline's own network.
    maps = pa.AlignConfig.uncalibrated(**budget)
    heat, reference = (a.align(images[1], each[1], config=maps).heatmaps for a in (compiled, plain))
    assert np.array_equal(heat, reference)
    assert reference.std() > 0.01

    assert compiled.backbone.compiled
    assert not plain.backbone.compiled
    assert compiled.backbone.denoiser is plain.backbone.denoiser is denoiser
    after = everything(pipe)
    assert all(equal(before[key], after[key]) for key in before)
    again = plain.align(images[0], classes)
    assert np.array_equal(again.losses, expected.losses)
    assert np.array_equal(again.heatmaps, expected.heatmaps)
    assert len(backend.shapes) == len(set(sizes))


def test_compiling_is_asked_for(sd1, sd1_folder, uncompiled):
    assert not model_of(sd1).backbone.compiled
    assert not model_of(sd1_folder, device="cpu").backbone.compiled
    assert model_of(sd1, compile=True).backbone.compiled
    assert model_of(sd1, compile="eager").backbone.compiled
    with pytest.raises(RuntimeError, match="'gcc'"):
        model_of(sd1, compile="gcc")


# ---- two sizes ----


@given(st.integers(1, 400), st.integers(1, 70))
def test_fixed_sizes_cover_all_passes_and_waste_little(passes, full):
    eighth = max(1, full // 8)
    left, sizes = passes, []
    while left > 0:
        sizes.append(fixed_size(left, full))
        left -= sizes[-1]

    assert set(sizes) <= {full, eighth}
    assert sizes == sorted(sizes, reverse=True)  # so that filling is at the very end
    assert full == eighth or sizes.count(eighth) <= 6
    assert sum(sizes) - sizes[-1] < passes
    assert sum(sizes) - passes <= most_filling(full)


def most_filling(full):
    """A full batch is filled from 6 eighths + 1 on, and one of an eighth from 1."""
    eighth = max(1, full // 8)
    return max(full - (6 * eighth + 1), eighth - 1, 0)


def test_fixed_sizes_waste_that_much():
    """The bound is met, and it is less than a quarter where eighths are whole."""
    for full in range(1, 71):
        filling = [
            fixed_size(left, full) - left
            for left in range(1, 2 * full)
            if fixed_size(left, full) >= left
        ]
        assert max(filling, default=0) == most_filling(full)
        if full % 8 == 0:
            assert most_filling(full) == full // 4 - 1
        assert most_filling(full) < full // 4 + full % 8 + 1


def test_fixed_sizes_by_hand():
    assert [fixed_size(left, 16) for left in (1, 2, 12, 13, 16, 99)] == [2, 2, 2, 16, 16, 16]
    assert {fixed_size(left, 1) for left in range(1, 9)} == {1}


@pytest.mark.parametrize("pooled", [False, True])
def test_a_batch_is_filled_with_the_last_pass(pooled):
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 2, 3, 4, generator=generator)
    embeds = torch.randn(2, 5, 6, generator=generator)
    texts = TextCondition(embeds, embeds[:, 0] if pooled else None)
    passes = Passes.of_one(latents, texts, a_visit(3, generator))
    exact, filled = passes.batch(4, 6), passes.batch(4, 9)

    assert filled.text.tolist() == [1] * 5
    assert filled.image.tolist() == [0] * 5
    rows = [0, 1, 1, 1, 1]
    assert torch.equal(filled.z, exact.z[rows])
    assert torch.equal(filled.noise, exact.noise[rows])
    assert torch.equal(filled.steps.time, exact.steps.time[rows])
    assert torch.equal(filled.texts.embeds, exact.texts.embeds[rows])
    if pooled:
        assert torch.equal(filled.texts.pooled, exact.texts.pooled[rows])


@pytest.mark.parametrize(
    ("batch_size", "count", "expected"),
    [
        (8, 4, [8, 1, 1, 1, 1]),  # 12 passes
        (8, 5, [8, 8]),  # 15, one filled
        (5, 4, [5, 5, 1, 1]),
        (16, 1, [2, 2]),  # 3, one filled
        (1, 2, [1] * 6),
    ],
)
def test_filling_is_not_in_the_result(
    pipeline, uncompiled, monkeypatch, batch_size, count, expected
):
    run = setting(pipeline("sd3"), count=count, size=(8, 8))
    backbone = run[0]
    plain = losses(*run, batch_size=batch_size)
    backbone.compile("eager")
    seen, done = epsilon_batches(backbone, monkeypatch), 0
    epsilon = backbone.epsilon

    def spoiled(z, *rest):
        nonlocal done
        estimate = epsilon(z, *rest)
        real = min(len(z), len(TEXTS) * count - done)
        done += real
        estimate[real:] = torch.nan  # after the check for NaN
        return estimate

    monkeypatch.setattr(backbone, "epsilon", spoiled)
    found = losses(*run, batch_size=batch_size)
    assert seen == expected
    assert found.shape == (3, count)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)


def test_every_work_has_the_same_two_sizes(wide, uncompiled, monkeypatch):
    """Whatever the number of images and classes."""
    config = pa.AlignConfig.fast(elbo_steps=6, collect_steps=1)
    aligner = model_of(wide("sd1"), config=config, batch_size=16, compile="eager")
    plain = model_of(wide("sd1"), config=config, batch_size=16)
    seen = epsilon_batches(aligner.backbone, monkeypatch)
    images = pictures((40, 30), (30, 50), (64, 64))
    each = [["dog", "cat"], ["car", "tree", "zebra", "door", "dog"], ["hot dog"]]
    for one, alone in zip(aligner.align(images, each), plain.align(images, each), strict=True):
        assert_close(one, alone)
        assert one.provenance["forwards"] == alone.provenance["forwards"]  # without the filling
    for classes in each[:2]:  # 12 passes, and 30
        aligner.align(images[0], classes)
    assert set(seen) == {16, 2}
    by_position = aligner.align(images[0], each[0], method="dense")  # 18, with the empty text
    assert seen[-2:] == [16, 2]
    assert_close(by_position, plain.align(images[0], each[0], method="dense"))


def test_out_of_memory_with_compiled_passes(wide, uncompiled):
    pipe, seen = wide("sd1"), []
    config = pa.AlignConfig(elbo_steps=6, collect_steps=2)
    expected = model_of(pipe, config=config).align(tiny.photo(40, 30), ["dog", "cat", "car"])
    aligner = model_of(pipe, config=config, batch_size=16, compile="eager")
    warned = pytest.warns(RuntimeWarning, match="out of memory with 16 passes at once")
    with refuse_above(8, pipe.unet, seen), warned:
        found = aligner.align(tiny.photo(40, 30), ["dog", "cat", "car"])
    assert seen == [16, 8, 8, 1, 1, 2]  # the errors first, then attention
    assert_close(found, expected)


def test_out_of_memory_with_a_filled_batch_of_one_pass(wide, uncompiled):
    pipe = wide("sd1")
    config = pa.AlignConfig(elbo_steps=1, collect_steps=1)
    aligner = model_of(pipe, config=config, batch_size=16, compile="eager")
    with refuse_above(1, pipe.unet, []), pytest.warns(RuntimeWarning, match="out of memory"):
        aligner.align(tiny.photo(40, 30), ["dog"])


# ---- few shapes ----


def test_compiled_passes_see_few_shapes(pipeline, uncompiled):
    config, pipe = pa.AlignConfig(resize="keep"), pipeline("sd3")
    plain, compiled = (model_of(pipe, config=config, compile=c) for c in (False, "eager"))
    native = compiled.encode(tiny.photo(90, 90)).latents.shape
    assert compiled.encode(tiny.photo(96, 88)).latents.shape == native
    photos = [tiny.photo(width, 64) for width in range(40, 230, 12)]
    few, many = ({a.encode(each).latents.shape for each in photos} for a in (compiled, plain))
    assert len(few) < len(many)
