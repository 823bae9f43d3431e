"""Several images at once give what each alone gives."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pixalign as pa
from helpers import LONG, a_visit, assert_close, batches, model_of, pictures, refuse_above, same
from pixalign.alignment import collect, elbo
from pixalign.alignment.plan import NoisedTimesteps, Passes, plan_prompts, plan_timesteps
from pixalign.backbones import wrap
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import TextCondition
from pixalign.diffusion.schedule import Steps

STEPS = {"elbo_steps": 2, "collect_steps": 2}
EACH = [["dog"], LONG, ["hot dog", "dog"]]


@pytest.mark.parametrize("name", ["sd1", "sdxl", "sd3"])
@pytest.mark.parametrize("preset", ["default", "paper", "official", "uncalibrated"])
def test_every_preset_equals_single_calls(wide, name, preset):
    """An image with so many classes that its prompt is split, and one with two."""
    steps = {"elbo_timesteps": (1, 701), "collect_timesteps": (20, 200)}
    config = pa.AlignConfig.preset(preset, **(steps if preset == "official" else STEPS))
    aligner = model_of(wide(name), config=config)
    images = pictures((40, 30), (30, 50))
    together = aligner.align(images, EACH[1:], seed=3)

    assert [len(one.provenance["prompts"]) for one in together] == [2, 1]
    for one, image, classes in zip(together, images, EACH[1:], strict=True):
        assert_close(one, aligner.align(image, classes, seed=3))


def test_batches_may_end_anywhere(wide):
    aligner = model_of(wide("sd3-t5"), config=pa.AlignConfig(**STEPS), batch_size=3)
    images = pictures((40, 30), (30, 50), (64, 64))
    for one, image, classes in zip(aligner.align(images, EACH), images, EACH, strict=True):
        assert_close(one, aligner.align(image, classes))


def test_float32_differs_by_rounding_alone(pipeline):
    images, each = pictures((40, 30), (30, 50)), EACH[1:]
    aligner = model_of(pipeline("sd3"), config=pa.AlignConfig(**STEPS))
    plain = pa.AlignConfig.uncalibrated(**STEPS)
    together, again = (aligner.align(images, each) for _ in range(2))
    maps = aligner.align(images, each, config=plain)

    assert all(same(*pair) for pair in zip(together, again, strict=True))
    for index, (image, classes) in enumerate(zip(images, each, strict=True)):
        alone = aligner.align(image, classes)
        np.testing.assert_allclose(together[index].losses, alone.losses, rtol=1e-5, atol=1e-5)
        assert_close(maps[index], aligner.align(image, classes, config=plain))


@pytest.mark.parametrize("name", ["sd1", "sdxl", "sd3"])
def test_mixed_shapes_keep_their_places(wide, name):
    pipe = wide(name)
    config = pa.AlignConfig(resize="keep", **STEPS)
    aligner = model_of(pipe, config=config, batch_size=100)
    images = pictures((120, 30), (30, 120), (160, 40), (64, 64))
    each = [["dog"], ["cat", "dog"], ["hot dog", "car", "dog"], ["tree"]]
    shapes = [aligner.encode(image).latents.shape for image in images]
    assert shapes[0] == shapes[2]
    assert len(set(shapes)) == 3

    together, seen = batches(pipe, lambda: aligner.align(images, each))

    found = [one.heatmaps.shape for one in together]
    assert found == [(1, 30, 120), (2, 120, 30), (3, 40, 160), (1, 64, 64)]
    assert seen == [8, 4, 4, 2, 2, 2]  # each size: once for losses, once for maps
    for one, image, classes in zip(together, images, each, strict=True):
        assert_close(one, aligner.align(image, classes))


def test_a_generator_is_asked_in_list_order_whatever_the_shapes(wide):
    config = pa.AlignConfig(resize="keep", elbo_strategy="random", **STEPS)
    aligner = model_of(wide("sd3"), config=config)
    images = pictures((120, 30), (30, 120), (160, 40), (120, 30))
    together = aligner.align(images, ["dog", "cat"], generator=torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(9)
    for one, image in zip(together, images, strict=True):
        assert_close(one, aligner.align(image, ["dog", "cat"], generator=generator))
    chosen = {str(one.provenance["timesteps"]["elbo"]) for one in together}
    assert len(chosen) == len(images)


def test_images_of_one_size_share_batches(wide):
    pipe = wide("sd1")
    aligner = model_of(pipe, config=pa.AlignConfig(**STEPS), batch_size=100)
    _, seen = batches(pipe, lambda: aligner.align(pictures((40, 30), (30, 50)), EACH[1:]))
    assert seen == [(4 + 2) * 2, (2 + 1) * 2]


def test_how_many_images_go_together(pipeline, monkeypatch):
    backbone, latents = wrap(pipeline("sd1")), torch.zeros(1, 4, 32, 16)
    cells = 32 * 16

    def found(budget, self_attention):
        monkeypatch.setattr(collect, "_SELF_BUDGET", budget)
        return collect.images_at_once(backbone, latents, self_attention)

    for choice, matrices in {"once": 1, "twice": 1, "up-after-all": 2}.items():
        assert found(6 * cells**2, choice) == 6 // matrices
        assert found(6 * cells**2 - 1, choice) == (5 if matrices == 1 else 2)
        assert found(1, choice) == 1
        assert found(2**40, choice) == 64
    assert found(6 * cells**2, "none") == 64


def test_long_lists_are_split_and_the_result_stays(wide, monkeypatch):
    pipe = wide("sd1")
    aligner = model_of(pipe, config=pa.AlignConfig(**STEPS), batch_size=100)
    images = pictures(*[(40, 30)] * 5)
    each = [["dog"], ["cat", "dog"], ["car"], ["tree", "dog", "cat"], ["zebra"]]
    whole, seen = batches(pipe, lambda: aligner.align(images, each))
    assert seen == [8 * 2, 5 * 2]

    monkeypatch.setattr(collect, "_SELF_BUDGET", 2 * (16 * 16) ** 2)
    split, seen = batches(pipe, lambda: aligner.align(images, each))
    assert seen == [3 * 2, 2 * 2, 4 * 2, 2 * 2, 1 * 2, 1 * 2]
    for pair in zip(split, whole, strict=True):
        assert_close(*pair)

    plain, generator = pa.AlignConfig.uncalibrated(**STEPS), torch.Generator()
    split = aligner.align(images, each, config=plain, generator=generator.manual_seed(2))
    monkeypatch.undo()
    whole = aligner.align(images, each, config=plain, generator=generator.manual_seed(2))
    for pair in zip(split, whole, strict=True):
        assert_close(*pair)


def test_out_of_memory_in_the_middle_of_a_group(wide):
    pipe, seen = wide("sd1"), []
    images = pictures((40, 30), (30, 50), (64, 64))
    config = pa.AlignConfig(elbo_steps=3, collect_steps=3)
    expected = [
        model_of(pipe, config=config).align(image, classes)
        for image, classes in zip(images, EACH, strict=True)
    ]
    aligner = model_of(pipe, config=config, batch_size=16)
    handle = refuse_above(5, pipe.unet, seen)
    try:
        with pytest.warns(RuntimeWarning, match="out of memory with 11 passes at once"):
            together = aligner.align(images, EACH)
    finally:
        handle.remove()

    # 7 texts and 4 prompts at 3 steps; a batch of 4 may hold passes of two images.
    assert seen == [11, 5, 4, 4, 4, 4, 12, 6, 3, 3, 3, 3]
    for one, alone in zip(together, expected, strict=True):
        assert_close(one, alone)
        assert any("out of memory" in note for note in one.warnings)


class Fragile:
    """Refuses the n-th pass once, as if memory ran out after part of the sums was made."""

    def __init__(self, denoiser, at):
        self.count, self.at = 0, at
        self.handle = denoiser.register_forward_pre_hook(self)

    def __call__(self, module, args):
        self.count += 1
        if self.count == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


def test_sums_start_anew_after_a_late_failure(wide):
    """In the second batch of maps, after half an image's steps, and amid the losses."""
    pipe = wide("sd1")
    images = pictures((40, 30), (30, 50), (64, 64))
    config = pa.AlignConfig(**STEPS)
    expected = model_of(pipe, config=config).align(images, EACH)
    for at in (2, 6):
        failing = Fragile(pipe.unet, at)
        try:
            with pytest.warns(RuntimeWarning, match="out of memory with 3 passes at once"):
                found = model_of(pipe, config=config, batch_size=3).align(images, EACH)
        finally:
            failing.handle.remove()
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)


@pytest.mark.parametrize(
    ("name", "self_attention", "image_only"),
    [("sd1", "up-after-all", False), ("sdxl", "once", False), ("sd3.5", "twice", True)],
)
def test_maps_of_every_layer_equal_those_of_one_image(wide, name, self_attention, image_only):
    backbone = wrap(wide(name))
    config = pa.AlignConfig(
        self_attention=self_attention, image_only_attention=image_only, **STEPS
    ).resolved(backbone.family)
    generator = torch.Generator().manual_seed(0)
    channels = backbone.denoiser.config.in_channels
    latents = torch.randn(3, channels, 16, 8, generator=generator)
    words = [plan_prompts(backbone, classes, None, config) for classes in EACH]
    visits = [plan_timesteps(backbone.schedule, latents, config, generator)[0] for _ in EACH]

    def maps(chosen):
        rest = (config, BatchSize(5), Progress(0, "", show=False))
        parts = [words[i] for i in chosen], [visits[i] for i in chosen]
        return collect.attention_maps(backbone, latents[list(chosen)], *parts, *rest)

    for index, found in enumerate(maps(range(3))):
        (alone,) = maps([index])
        assert found.grid == alone.grid
        assert found.layers == alone.layers
        assert len(found.cross) == len(found.layers)
        for layer, expected in zip(found.cross, alone.cross, strict=True):
            assert layer.shape == (len(EACH[index]), *expected.shape[1:])
            torch.testing.assert_close(layer, expected, rtol=1e-5, atol=1e-7)
        for matrix, expected in zip(found.self_attention, alone.self_attention, strict=True):
            torch.testing.assert_close(matrix, expected, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(maps(range(3))[0].self_attention[0], alone.self_attention[0])


def test_losses_of_a_group_by_hand(wide):
    """Each image's texts with its own latents, noise and steps, one pass at a time."""
    backbone = wrap(wide("sd3"))
    config = pa.AlignConfig(elbo_strategy="random", **STEPS).resolved("sd3")
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(2, 16, 16, 16, generator=generator)
    classes = [[pa.Phrase("dog", "animal"), "car", pa.Phrase("cat", "animal")], ["car", "dog"]]
    words = [plan_prompts(backbone, each, None, config) for each in classes]
    visits = [plan_timesteps(backbone.schedule, latents, config, generator)[1] for _ in classes]
    how = (BatchSize(3), Progress(0, "", show=False))
    measured = elbo.text_errors(backbone, latents, [w.elbo_texts for w in words], visits, *how)
    assert [each.texts for each in measured] == [
        ("a photo of animal", "a photo of car"), ("a photo of car", "a photo of dog"),
    ]  # fmt: skip
    found = [each.of(w.elbo_texts).losses for each, w in zip(measured, words, strict=True)]

    texts = [["a photo of animal", "a photo of car", "a photo of animal"],
             ["a photo of car", "a photo of dog"]]  # fmt: skip
    for image, visit in enumerate(visits):
        assert found[image].shape == (len(texts[image]), 2)
        for i, text in enumerate(texts[image]):
            for j in range(2):
                t = float(visit.steps.sigma[j])
                z = (1 - t) * latents[image] + t * visit.noise[j]
                step = visit.steps[torch.tensor([j])]
                estimate = backbone.epsilon(z[None], step, backbone.encode_text([text]))
                expected = float((estimate[0] - visit.noise[j]).square().mean())
                assert float(found[image][i, j]) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(found[0][0], found[0][2])


# ---- passes ----


@settings(max_examples=25)
@given(
    texts=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    count=st.integers(1, 4),
    size=st.integers(1, 9),
    pooled=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_batches_cover_every_text_and_step_once(texts, count, size, pooled, seed):
    """``texts[i]`` texts of image i, each at ``count`` steps of that image."""
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(len(texts), 2, 3, 4, generator=generator)
    visits = [a_visit(count, generator) for _ in texts]
    owners = torch.tensor([image for image, held in enumerate(texts) for _ in range(held)])
    embeds = torch.randn(len(owners), 5, 6, generator=generator)
    condition = TextCondition(embeds, embeds[:, 0] if pooled else None)
    passes = Passes(latents, condition, owners, NoisedTimesteps.concatenate(visits))
    assert len(passes) == sum(texts) * count
    assert passes.steps_each == count

    expected = []
    text = 0
    for image, held in enumerate(texts):
        for _ in range(held):
            for step in range(count):
                expected.append((image, text, step))
            text += 1
    found = Counter()
    for first in range(0, len(passes), size):
        batch = passes.batch(first, min(first + size, len(passes)))
        rows = expected[first : first + size]
        assert len(batch.z) == len(batch.noise) == len(batch.steps) == len(batch.texts) == len(rows)
        assert batch.image.tolist() == [image for image, _, _ in rows]
        assert batch.text.tolist() == [text for _, text, _ in rows]
        for row, (image, text, step) in enumerate(rows):
            steps, noise = visits[image].steps, visits[image].noise[step]
            z = float(steps.alpha[step]) * latents[image] + float(steps.sigma[step]) * noise
            torch.testing.assert_close(batch.z[row], z)
            assert torch.equal(batch.noise[row], noise)
            assert batch.steps.time[row] == steps.time[step]
            assert batch.steps.lambda_slope[row] == steps.lambda_slope[step]
            assert torch.equal(batch.texts.embeds[row], embeds[text])
            assert (batch.texts.pooled is not None) == pooled
            if pooled:
                assert torch.equal(batch.texts.pooled[row], embeds[text, 0])
            found[text, step] += 1
    assert found == Counter({(text, step): 1 for _, text, step in expected})


def test_passes_of_one_image():
    generator = torch.Generator().manual_seed(0)
    latents, visit = torch.randn(1, 2, 3, 4, generator=generator), a_visit(3, generator)
    passes = Passes.of_one(latents, TextCondition(torch.zeros(2, 5, 6)), visit)
    batch = passes.batch(0, len(passes))
    assert len(passes) == len(batch.z) == 6
    assert batch.image.tolist() == [0] * 6
    assert batch.text.tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(batch.z[:3], visit.steps.noised(latents, visit.noise))
    assert torch.equal(batch.z[:3], batch.z[3:])


def test_visits_one_after_the_other():
    generator = torch.Generator().manual_seed(0)
    visits = [a_visit(count, generator) for count in (2, 1, 3)]
    whole = NoisedTimesteps.concatenate(visits)
    assert len(whole.steps) == 6
    start = 0
    for visit in visits:
        part = slice(start, start + len(visit.steps))
        assert torch.equal(whole.noise[part], visit.noise)
        for name in ("time", "alpha", "sigma", "alpha_slope", "lambda_slope"):
            assert torch.equal(getattr(whole.steps, name)[part], getattr(visit.steps, name))
        start = part.stop


def test_steps_one_after_the_other():
    parts = [Steps(*torch.rand(5, count, dtype=torch.float64).unbind()) for count in (3, 1)]
    whole = Steps.concatenate(parts)
    assert len(whole) == 4
    for name in ("time", "alpha", "sigma", "alpha_slope", "lambda_slope"):
        expected = [*getattr(parts[0], name).tolist(), *getattr(parts[1], name).tolist()]
        assert getattr(whole, name).tolist() == expected
    assert whole.time.dtype == torch.float64
