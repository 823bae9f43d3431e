"""The tap: every backend and processor, threads, layers that say nothing, and what stays behind."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry
from diffusers.models.attention_processor import AttnProcessor, SlicedAttnProcessor

import pixalign as pa
import tiny
import zoo
from helpers import assert_same, fingerprint, inputs
from pixalign.attention import AttentionReader
from pixalign.attention.tap import tapped
from pixalign.backbones import wrap
from pixalign.core.values import AttentionCall

QUICK = pa.AlignConfig(elbo_steps=2, collect_steps=2)


def read(backbone, given, seed=0):
    """Each layer's maps of all tokens."""
    reader = AttentionReader(backbone.sites)
    reader.columns = torch.eye(given[2].embeds.shape[1]).expand(len(given[0]), -1, -1)
    with reader.attached(backbone):
        backbone.predict(*given)
    return dict(reader.cross)


def assert_maps(found, expected, **close):
    assert found.keys() == expected.keys()
    for site, maps in expected.items():
        torch.testing.assert_close(found[site], maps, **close)


# ---- what a layer computes ----


@pytest.mark.parametrize("kind", ["bool", "float", "none"])
@pytest.mark.parametrize("groups", [1, 2])
def test_probabilities_times_values_are_the_output(kind, groups):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=generator)
    key, value = torch.randn(2, 2, 4 // groups, 9, 8, generator=generator)
    mask = torch.rand(2, 1, 1, 9, generator=generator)
    masks = {"bool": mask > 0.3, "float": mask.log(), "none": None}
    options = {"attn_mask": masks[kind], "enable_gqa": groups > 1}
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    call = AttentionCall.of(query, key, value, **options)
    logits = call.query @ call.key.transpose(2, 3) * call.scale
    shares = (logits if call.mask is None else logits + call.mask).softmax(-1)
    torch.testing.assert_close(shares @ call.value, output, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("own", [False, True])
def test_tokens_are_put_in_order(own):
    """Picture, text, others: whatever stands where, in all rows alike or in each otherwise."""
    tokens = torch.arange(2 * 7 * 1.0).reshape(2, 1, 7, 1)
    order = torch.tensor([4, 5, 6, 1, 2, 3, 0])
    order = torch.stack([order, order.roll(1)]) if own else order
    mask = torch.arange(2 * 7 * 7.0).reshape(2, 1, 7, 7)
    call = AttentionCall(tokens, tokens, tokens, mask, 1.0).of_picture(order, 3)
    for row in range(2):
        places = order[row] if own else order
        assert call.query[row, 0, :, 0].tolist() == tokens[row, 0, places[:3], 0].tolist()
        assert call.key[row, 0, :, 0].tolist() == tokens[row, 0, places, 0].tolist()
        assert torch.equal(call.mask[row, 0], mask[row, 0][places[:3]][:, places])


# ---- processors and backends ----


@pytest.mark.parametrize("processor", [AttnProcessor, lambda: SlicedAttnProcessor(1)])
def test_processors_that_make_no_call_are_read_by_their_projections(sd1, processor):
    pipe = copy.copy(sd1)
    pipe.register_modules(unet=copy.deepcopy(sd1.unet))
    backbone = wrap(pipe)
    given = inputs(backbone)
    expected = read(backbone, given)
    backbone.denoiser.set_attn_processor(processor())
    plain, before = backbone.predict(*given), fingerprint(backbone.denoiser)
    assert_maps(read(backbone, given), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(backbone.predict(*given), plain)
    assert_same(before, fingerprint(backbone.denoiser))


class Silent(AttnProcessor):
    """Attends in a way of its own, which nobody can hear."""


def test_a_layer_that_says_nothing_is_an_error(sd1):
    pipe = copy.copy(sd1)
    pipe.register_modules(unet=copy.deepcopy(sd1.unet))
    backbone = wrap(pipe)
    given = inputs(backbone)
    backbone.denoiser.set_attn_processor(Silent())
    with pytest.raises(RuntimeError, match="Attention with Silent cannot be read"):
        read(backbone, given)
    backbone.predict(*given)  # unread, it runs


@pytest.mark.parametrize("backend", ["_native_math", "flex"])
@pytest.mark.parametrize("name", ["flux-dev", "qwen-image"])
def test_other_attention_backends_are_heard(name, backend):
    pipe = zoo.cases()[name].build()
    backbone = wrap(pipe)
    given, expected = inputs(backbone), None
    expected = read(backbone, given)
    active = _AttentionBackendRegistry._active_backend
    try:
        backbone.denoiser.set_attention_backend(backend)
        plain, table = backbone.predict(*given), dict(_AttentionBackendRegistry._backends)
        found = read(backbone, given)
        assert dict(_AttentionBackendRegistry._backends) == table
        assert torch.equal(backbone.predict(*given), plain)
    finally:
        _AttentionBackendRegistry._active_backend = active  # diffusers leaves it for all models
    assert_maps(found, expected, atol=1e-5, rtol=1e-4)


def test_fused_projections_say_the_same():
    backbone = wrap(zoo.cases()["flux-dev"].build())
    given = inputs(backbone)
    expected = read(backbone, given)
    backbone.pipe.transformer.fuse_qkv_projections()
    assert_maps(read(backbone, given), expected, atol=1e-5, rtol=1e-4)


def test_bfloat16_is_read_in_float32():
    backbone = wrap(zoo.cases()["flux-dev"].build().to(torch.bfloat16))
    given = inputs(backbone)
    plain = backbone.predict(*given)
    maps = read(backbone, given)
    assert all(layer.dtype == torch.float32 for layer in maps.values())
    assert torch.equal(backbone.predict(*given), plain)


@pytest.mark.parametrize("name", ["sd1", "flux-dev"])
def test_a_compiled_network_is_read_uncompiled(name):
    pipe = tiny.sd1() if name == "sd1" else zoo.cases()[name].build()
    backbone = wrap(pipe)
    given = inputs(backbone)
    expected = read(backbone, given)
    backbone.denoiser.compile(backend="eager")
    assert_maps(read(backbone, given), expected)


# ---- threads ----


def test_threads_that_share_a_model_get_what_each_would_alone(sd1):
    model = pa.load(sd1)
    pictures = [tiny.photo(96, 64, seed=seed) for seed in range(4)]
    classes = [["dog", "cat"], ["car"], ["tree", "door", "screen"], ["hot dog", "dog"]]
    asked = list(zip(pictures, classes, strict=True))
    expected = [model.align(*each, config=QUICK).heatmaps for each in asked]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: model.align(*each, config=QUICK).heatmaps, asked * 3))
    for index, heatmaps in enumerate(found):
        assert np.array_equal(heatmaps, expected[index % 4])


def test_readers_in_several_threads_do_not_hear_each_other(sd1):
    """Even without the model's lock: each hears the passes of its own thread."""
    backbone = wrap(sd1)
    given = [inputs(backbone, batch=1, size=(8, 8), seed=seed) for seed in range(6)]
    expected = [read(backbone, each) for each in given]
    before, together = fingerprint(sd1.unet), threading.Barrier(6)

    def work(each):
        together.wait()
        return read(backbone, each)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, given))
    for maps, alone in zip(found, expected, strict=True):
        assert_maps(maps, alone)
    assert_same(before, fingerprint(sd1.unet))
    assert not [hook for part in sd1.unet.modules() for hook in part._forward_pre_hooks]


def test_another_threads_pipeline_is_not_heard(sd1):
    """While words are captured here, the same network may run there, by its own scheduler."""
    there = copy.copy(sd1)
    there.register_modules(scheduler=copy.deepcopy(sd1.scheduler))
    options = {"num_inference_steps": 2, "output_type": "latent", "height": 64, "width": 64}

    def run(prompt, pipe=sd1):
        return pipe(prompt, generator=torch.Generator().manual_seed(0), **options).images

    with pa.load(sd1).capture(["dog"]) as alone:
        plain = run("a red dog")
    with pa.load(sd1).capture(["dog"]) as maps, ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, "two cat and a tree", there)
        assert torch.equal(run("a red dog"), plain)
        other.result()
    assert torch.equal(maps.steps, alone.steps)


def test_the_listener_is_told_of_each_layer_once(sd1):
    backbone, heard = wrap(sd1), []
    with tapped(backbone, backbone.sites, lambda site, call, grid: heard.append((site, grid))):
        backbone.predict(*inputs(backbone))
    assert [site for site, _ in heard] == list(backbone.sites)
    assert all(grid == site.grid((32, 32)) for site, grid in heard)
