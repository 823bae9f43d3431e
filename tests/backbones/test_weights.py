"""Weights that are kept as int8: near those of the files, in every layer but the narrow ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import save_file
from torch import nn

import pixalign as pa
import tiny
import zoo
from adapters import lora_weights
from helpers import equal, everything
from pixalign.attention import AttentionReader
from pixalign.backbones import weights
from pixalign.backbones.weights import Int8Weight, byte_layers, kept_as_int8

QUICK = pa.AlignConfig(elbo_steps=3, collect_steps=2)
CLASSES = ["dog", "hot dog", "cat"]


@pytest.fixture
def wide_layers(monkeypatch):
    """Tiny networks have few layers that are not narrow."""
    monkeypatch.setattr(weights, "_NARROW", 8)


def saved(name, folder):
    build = tiny.BUILDERS.get(name) or zoo.cases()[name].build
    build().save_pretrained(folder)
    return folder


SHAPES = st.sampled_from([(3, 32), (4, 96), (2, 33), (5, 16, 3, 3), (2, 32, 1, 1), (1, 7)])


@given(
    SHAPES.flatmap(
        lambda shape: arrays.arrays(
            np.float32, shape, elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
        )
    ),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_a_weight_is_off_by_half_a_step(values, dtype):
    """A step is a 127th of the largest number of its group of 32, or of its row."""
    weight, kept = torch.from_numpy(values).to(dtype), Int8Weight()
    numbers, scales = kept.right_inverse(weight)
    again = kept(numbers, scales)
    assert numbers.dtype == torch.int8
    assert (numbers.shape, again.shape, again.dtype) == (weight.shape, weight.shape, dtype)
    row = values[0].size
    side = row if row % 32 else 32
    groups = weight.double().reshape(-1, side)
    steps = groups.abs().amax(1, keepdim=True) / 127
    off = (again.double().reshape(-1, side) - groups).abs()
    rounding = groups.abs().amax() * torch.finfo(dtype).eps + 128 * torch.finfo(dtype).tiny
    assert (off <= 0.5 * steps + rounding).all()


@pytest.mark.parametrize("name", ["sd1", "sdxl", "sd3", "flux-dev"])
def test_maps_are_close_and_the_pipeline_stays(name, tmp_path, photo, wide_layers, monkeypatch):
    folder = saved(name, tmp_path)
    whole, small = (pa.load(folder, dtype=dtype) for dtype in ("float32", "int8"))
    heard = []
    observe = AttentionReader._observe

    def spy(self, site, call, grid):
        heard.append((self, site.place, site.factor, grid, call.query.shape))
        return observe(self, site, call, grid)

    monkeypatch.setattr(AttentionReader, "_observe", spy)
    config = replace(QUICK, method="dense")
    expected = whole.align(photo, CLASSES, config=config)
    first, heard[:] = [entry[1:] for entry in heard], []
    found = small.align(photo, CLASSES, config=config)
    assert [entry[1:] for entry in heard] == first
    before = everything(small.pipe)  # transformers adds hooks of its own at the first call
    again = small.align(photo, CLASSES, config=config)
    after = everything(small.pipe)
    assert all(equal(before[key], after[key]) for key in before)
    assert np.array_equal(again.heatmaps, found.heatmaps)
    assert found.heatmaps.shape == expected.heatmaps.shape
    np.testing.assert_allclose(found.losses, expected.losses, rtol=0.05)
    assert not np.array_equal(found.losses, expected.losses)
    assert np.corrcoef(found.heatmaps.ravel(), expected.heatmaps.ravel())[0, 1] > 0.9
    record = found.provenance["model"]
    assert (record["dtype"], record["weights_dtype"]) == ("float32", "int8")
    assert "weights_dtype" not in expected.provenance["model"]


def test_which_layers(tmp_path):
    """At the usual bound; the VAE, embeddings, biases and narrow layers stay as they are."""
    model = pa.load(dtype="int8", device="cpu")
    kept = {
        name
        for name, part in model.pipe.unet.named_modules()
        if isinstance(getattr(part, "parametrizations", None), nn.ModuleDict)
    }
    assert kept
    assert not {"conv_in", "conv_out"} & kept
    layers = {
        name: part for name, part in model.pipe.unet.named_modules()
        if isinstance(part, nn.Linear | nn.Conv2d)
    }  # fmt: skip
    assert set(layers) - kept == {"conv_in", "conv_out"}
    assert not kept_as_int8(model.pipe.vae)
    whole = pa.load(device="cpu").pipe.unet
    count = {}
    for unet in (whole, model.pipe.unet):
        state = unet.state_dict().values()
        count[unet] = sum(each.numel() * each.element_size() for each in state)
    assert count[model.pipe.unet] < 0.3 * count[whole]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(tmp_path, photo, wide_layers, backend):
    folder = saved("sd3", tmp_path)
    plain, compiled = (pa.load(folder, dtype="int8", compile=c) for c in (False, backend))
    expected, found = (model.align(photo, CLASSES, config=QUICK) for model in (plain, compiled))
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)


@pytest.mark.parametrize("how", ["model", "group"])
def test_offloaded(tmp_path, photo, wide_layers, how):
    pipe = pa.load(saved("flux-dev", tmp_path), dtype="int8").pipe
    expected = pa.load(pipe).align(photo, CLASSES, config=QUICK)
    if how == "model":
        pipe.enable_model_cpu_offload(device="cpu")
    else:
        cpu = torch.device("cpu")
        pipe.transformer.enable_group_offload(cpu, cpu, offload_type="leaf_level")
    found = pa.load(pipe).align(photo, CLASSES, config=QUICK)
    np.testing.assert_allclose(found.heatmaps, expected.heatmaps, atol=1e-5)


def test_gradients_flow_through(tmp_path, wide_layers):
    """To latents and texts, as generation needs them; to no weight."""
    model = pa.load(saved("sd1", tmp_path), dtype="int8")
    backbone = model.backbone
    z = torch.randn(1, *backbone.latent_shape((64, 64)), requires_grad=True)
    text = backbone.encode_text(["a photo of dog"])
    backbone.output(z, backbone.schedule.at_indices([300]), text).square().sum().backward()
    assert z.grad.abs().sum() > 0
    assert all(layer.weight.grad is None for layer in byte_layers(model.pipe)[:1])


def test_with_a_lora(tmp_path, photo, wide_layers):
    """Its own layers stay whole, and it changes what the model says as it does otherwise."""
    folder, file = saved("sd3", tmp_path), tmp_path / "style.safetensors"
    save_file(lora_weights(tiny.sd3()), file)
    losses = {
        (dtype, lora): pa.load(folder, dtype=dtype, lora=lora)
        .align(photo, CLASSES, config=QUICK)
        .losses
        for dtype in ("float32", "int8")
        for lora in (None, file)
    }
    changed = [losses[dtype, file] - losses[dtype, None] for dtype in ("float32", "int8")]
    assert np.abs(changed[1] - changed[0]).max() < 0.2 * np.abs(changed[0]).max()
    layer = pa.load(folder, dtype="int8", lora=file).pipe.transformer.transformer_blocks[0]
    assert kept_as_int8(layer.attn.to_q.base_layer)
    assert not kept_as_int8(layer.attn.to_q.lora_A)


def test_refused_in_one_line(tmp_path, sd1_folder, sd1, shell):
    with pytest.raises(ValueError, match="dtype is 'int8' and a quantization_config is given"):
        pa.load(sd1_folder, dtype="int8", quantization_config=object())
    with pytest.raises(ValueError, match="cannot change a loaded pipeline"):
        pa.load(sd1, dtype="int8")
    with pytest.raises(ValueError, match="dtype is 'int4'; allowed: 'auto', 'float32'"):
        pa.load(sd1_folder, dtype="int4")
    code, _, said = shell("segment", "missing.png", "dog", "--dtype", "float8")
    assert code == 2
    assert "'float8' is not one of 'auto', 'float32', 'float16', 'bfloat16', 'int8'" in said


def test_in_the_shell(tmp_path, photo, shell):
    photo.save(tmp_path / "photo.png")
    command = ("segment", tmp_path / "photo.png", "taco", "--preset", "fast")
    code, out, _ = shell(*command, "--dtype", "int8", "--device", "cpu", "--json")
    assert code == 0
    assert '"weights_dtype": "int8"' in out
