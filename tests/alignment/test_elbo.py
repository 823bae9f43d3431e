"""Losses against a plain loop; batches; running out of memory."""

import warnings

import numpy as np
import pytest
import torch

import pixalign as pa
import tiny
from helpers import TEXTS, losses, model_of, refuse_above, setting
from pixalign.core import batching
from pixalign.core.batching import BatchSize, out_of_memory


def test_losses_equal_one_pass_at_a_time(any_pipe):
    backbone, latents, noise, steps = setting(any_pipe)
    found = losses(backbone, latents, noise, steps, batch_size=5)

    expected = torch.empty(3, 4)
    for i, prompt in enumerate(TEXTS):
        text = backbone.encode_text([prompt])
        for j in range(4):
            step = steps[torch.tensor([j])]
            z = float(step.alpha) * latents + float(step.sigma) * noise[j : j + 1]
            estimate = backbone.epsilon(z, step, text)
            expected[i, j] = ((estimate - noise[j]) ** 2).mean()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"


def test_flow_loss_is_the_native_one_over_its_factor(pipeline):
    backbone, latents, noise, steps = setting(pipeline("sd3"), size=(16, 16))
    found = losses(backbone, latents, noise, steps)
    text = backbone.encode_text(TEXTS)
    for j in range(4):
        t = float(steps.sigma[j])
        z = ((1 - t) * latents + t * noise[j]).expand(3, -1, -1, -1)
        with torch.no_grad():
            output = backbone.pipe.transformer(
                hidden_states=z,
                timestep=torch.full((3,), 1000 * t),
                encoder_hidden_states=text.embeds,
                pooled_projections=text.pooled,
            ).sample
        flow = (output - (noise[j] - latents)).square().mean((1, 2, 3))
        torch.testing.assert_close(found[:, j], flow * (1 - t) ** 2, rtol=1e-4, atol=1e-6)


def test_losses_do_not_depend_on_the_batch_size(pipeline):
    backbone, latents, noise, steps = setting(pipeline("sdxl"))
    one, five, all_ = (
        losses(backbone, latents, noise, steps, batch_size=size) for size in (1, 5, 100)
    )
    torch.testing.assert_close(one, five, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one, all_, rtol=1e-5, atol=1e-6)


def test_repeat_is_identical(pipeline):
    run = setting(pipeline("sd1"))
    assert torch.equal(losses(*run), losses(*run))


def test_out_of_memory_halves_the_batch_and_says_so_once(photo):
    pipe, seen = tiny.sd1(), []
    settings = pa.AlignConfig(elbo_steps=6, collect_steps=6)
    expected = model_of(pipe, batch_size=4).align(photo, ["dog", "cat"], config=settings)
    aligner = model_of(pipe)
    handle = refuse_above(4, pipe.unet, seen)

    with pytest.warns(RuntimeWarning, match="out of memory with 12 passes at once"):
        first = aligner.align(photo, ["dog", "cat"], config=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        second = aligner.align(photo, ["dog", "cat"], config=settings)
    handle.remove()

    assert any("out of memory" in note for note in first.warnings)
    assert not any("out of memory" in note for note in second.warnings)
    assert seen == [12, 6, 3, 3, 3, 3, 6, 3, 3] + [3] * 6  # what was learnt is kept
    np.testing.assert_allclose(first.heatmaps, expected.heatmaps, atol=1e-5)
    np.testing.assert_allclose(first.losses, expected.losses, rtol=1e-5)


def test_out_of_memory_with_one_pass_is_raised(photo):
    pipe = tiny.sd1()
    handle = refuse_above(0, pipe.unet, [])
    with pytest.warns(RuntimeWarning, match="out of memory"), pytest.raises(torch.OutOfMemoryError):
        model_of(pipe).align(photo, ["dog", "cat"])
    handle.remove()


def test_other_errors_are_not_mistaken_for_it():
    assert not out_of_memory(RuntimeError("shapes do not match"))
    assert not out_of_memory(ValueError("out of memory"))
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    with pytest.raises(RuntimeError, match="shapes"):
        BatchSize().each(torch.zeros(1, 4, 8, 8), 9, "elbo", _fail)


def _fail(first, last):
    raise RuntimeError("shapes do not match")


@pytest.mark.parametrize("wrong", [0, -1, "many", 2.5])
def test_bad_batch_size_is_refused(wrong):
    with pytest.raises(ValueError, match="batch_size is"):
        BatchSize(wrong)


@pytest.mark.parametrize(("side", "normal", "low"), [(16, 64, 16), (64, 4, 1), (256, 1, 1)])
def test_low_memory_is_a_quarter_of_the_automatic_batch(side, normal, low):
    latents = torch.zeros(1, 4, side, side)
    assert (
        BatchSize().of(latents, "elbo") == BatchSize(memory="normal").of(latents, "elbo") == normal
    )
    assert BatchSize(memory="low").of(latents, "elbo") == low
    assert BatchSize(5, "low").of(latents, "elbo") == 5  # a number is a number


def test_low_memory_gives_the_same_in_smaller_batches(wide, photo, monkeypatch):
    """18 passes for losses and 6 for maps of the first picture; 6 and 6 of the second."""
    monkeypatch.setitem(batching._POSITIONS, "cpu", 16 * 16 * 16)
    pipe, found = wide("sd1"), {}
    config = pa.AlignConfig(elbo_steps=6, collect_steps=6)
    for memory in ("normal", "low"):
        seen = []
        handle = refuse_above(10_000, pipe.unet, seen)
        try:
            aligner = model_of(pipe, config=config, memory=memory)
            found[memory] = aligner.align([photo, photo], [["dog", "cat", "car"], ["tree"]]), seen
        finally:
            handle.remove()

    assert found["normal"][1] == [12, 12, 12]
    assert found["low"][1] == [4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3]
    for one, other in zip(found["low"][0], found["normal"][0], strict=True):
        for name in ("heatmaps", "losses", "elbo", "scores"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


@pytest.mark.parametrize("wrong", ["tiny", "", None, 4])
def test_unknown_memory_is_refused(sd1, wrong):
    with pytest.raises(ValueError, match=r"memory is .*; allowed: 'normal', 'low'"):
        BatchSize(memory=wrong)
    with pytest.raises(ValueError, match=r"memory is .*; allowed: 'normal', 'low'"):
        model_of(sd1, memory=wrong)


def test_nan_is_an_error_that_says_what_to_do(photo):
    pipe = tiny.sd1().to(torch.bfloat16)
    with torch.no_grad():
        pipe.unet.conv_out.bias.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match=r"NaN .* load the model with dtype='float32'"):
        model_of(pipe).align(photo, ["dog", "cat"])


def test_nan_in_attention_is_an_error_too(photo):
    pipe = tiny.sd1()
    with torch.no_grad():
        pipe.unet.mid_block.attentions[0].transformer_blocks[0].attn2.to_q.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="NaN"):
        model_of(pipe).align(photo, ["dog", "cat"], config=pa.AlignConfig.uncalibrated())
