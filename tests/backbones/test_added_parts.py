"""Pipelines as people have them: adapters, own words, quantised weights, offloading, tiled VAEs."""

import gguf
import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from diffusers import FirstBlockCacheConfig, FluxTransformer2DModel, GGUFQuantizationConfig

import pixalign as pa
import tiny
import zoo
from adapters import add_image_prompt, add_lora
from helpers import assert_same, fingerprint
from pixalign.attention import AttentionReader
from pixalign.backbones import wrap

QUICK = pa.AlignConfig(elbo_steps=2, collect_steps=1)
CALL = {"num_inference_steps": 2, "output_type": "latent", "height": 64, "width": 64}


def some(*names, quick=2):
    """The first as they are, the others when there is time."""
    return [*names[:quick], *(pytest.param(n, marks=pytest.mark.slow) for n in names[quick:])]


def build(name):
    return tiny.BUILDERS[name]() if name in tiny.BUILDERS else zoo.cases()[name].build()


def run(pipe, prompt="a red dog", **options):
    return pipe(prompt, generator=torch.Generator().manual_seed(0), **CALL, **options).images


def captured(pipe, words=("dog",), prompt="a red dog", **options):
    """The words' maps; the pipeline draws the same picture before, during and after."""
    plain, before = run(pipe, prompt, **options), fingerprint(wrap(pipe).denoiser)
    with pa.load(pipe).capture(list(words)) as maps:
        assert torch.equal(run(pipe, prompt, **options), plain)
    assert torch.equal(run(pipe, prompt, **options), plain)
    assert_same(before, fingerprint(wrap(pipe).denoiser))
    return maps.steps


@pytest.mark.parametrize("name", some("sd1", "flux-dev", "z-image", "sdxl", "sd3", "qwen-image"))
def test_lora_fused_and_not(name, photo):
    """One and the same network, to rounding, and another one than without."""
    pipe = build(name)
    plain = captured(pipe)
    add_lora(pipe)
    loose = captured(pipe)
    masks = pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps
    assert not torch.allclose(plain, loose, rtol=1e-2)
    pipe.fuse_lora()
    pipe.unload_lora_weights()
    torch.testing.assert_close(captured(pipe), loose, atol=1e-4, rtol=1e-3)
    fused = pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps
    np.testing.assert_allclose(fused, masks, atol=2e-3)


def test_a_textual_inversion_is_a_word(photo):
    """Its one vector moves its one column, and no other before it."""
    pipe = tiny.sd1()
    pipe.load_textual_inversion({"<toy>": torch.randn(1, 32)})
    backbone = wrap(pipe)
    text = "a red <toy> and a dog"
    start = text.index("<toy>")
    (columns,) = backbone.columns(text, [((start, start + 5),)], 77)
    before = backbone.encode_text([text]).embeds[0]
    token = pipe.tokenizer.convert_tokens_to_ids("<toy>")
    pipe.text_encoder.get_input_embeddings().weight.data[token] += 1
    after = backbone.encode_text([text]).embeds[0]
    moved = (before != after).any(1).nonzero()[:, 0]
    assert columns == (int(moved[0]),)  # the encoder is causal
    maps = captured(pipe, ["<toy>", "dog"], text)
    assert maps.amax((0, 1, 3, 4)).min() > 0
    found = pa.load(pipe).align(photo, ["<toy>", "dog"], config=QUICK)
    assert found.heatmaps.max(axis=(1, 2)).min() > 0.9


@pytest.mark.parametrize("name", some("sd1", "flux-dev", "sdxl"))
def test_image_prompts_are_no_words(name, photo):
    """Where a layer attends to a picture's tokens as well, only its text is read."""
    pipe = build(name)
    plain = captured(pipe)
    picture = add_image_prompt(pipe)
    options = {"ip_adapter_image_embeds": [picture]}
    if name == "flux-dev":  # asks for both
        options |= {"negative_ip_adapter_image_embeds": [torch.zeros_like(picture)]}
    if hasattr(pipe, "unet"):
        options |= {"guidance_scale": 1.0}
        plain = captured(build(name), guidance_scale=1.0)
    pipe.set_ip_adapter_scale(0.0)
    torch.testing.assert_close(captured(pipe, **options), plain, atol=1e-5, rtol=1e-4)
    pipe.set_ip_adapter_scale(1.0)
    assert not torch.allclose(captured(pipe, **options), plain, rtol=1e-2)
    model, backbone = pa.load(pipe), wrap(pipe)
    first = next(site for site in backbone.sites if site.reads_text)
    reader = AttentionReader([first])
    length = backbone.encode_text(["a red dog"]).embeds.shape[1]
    reader.columns = torch.eye(length)[None]
    with reader.attached(backbone):
        run(pipe, **options)
    if first.kind == "cross":
        torch.testing.assert_close(reader.cross[first].sum(1), torch.ones(1, *first.grid((16, 16))))
    with pytest.raises(ValueError, match="an image prompt adapter is loaded"):
        model.align(photo, ["dog"])
    pipe.unload_ip_adapter()
    if hasattr(pipe, "unet"):
        torch.testing.assert_close(captured(pipe, guidance_scale=1.0), plain)
    assert model.align(photo, ["dog", "cat"], config=QUICK).heatmaps.shape == (2, 80, 120)


def quantised(network, folder):
    """Its weights as a GGUF file whose matrices are of 8 bits."""
    kind, writer = gguf.GGMLQuantizationType.Q8_0, gguf.GGUFWriter(folder / "tiny.gguf", "flux")
    for name, weight in network.state_dict().items():
        values = weight.numpy()
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "tiny.gguf"


def test_gguf_by_way_of_a_loaded_pipeline(tmp_path, photo):
    pipe = build("flux-dev")
    expected = captured(pipe)
    whole = pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps
    pipe.transformer.save_pretrained(tmp_path / "described")
    pipe.transformer = FluxTransformer2DModel.from_single_file(
        quantised(pipe.transformer, tmp_path),
        quantization_config=GGUFQuantizationConfig(compute_dtype=torch.float32),
        config=str(tmp_path / "described"),
        torch_dtype=torch.float32,
    )
    layer = pipe.transformer.transformer_blocks[0].attn.to_q
    assert type(layer).__name__ == "GGUFLinear"
    found = captured(pipe)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.2)
    masks = pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps
    assert np.corrcoef(masks.ravel(), whole.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("kind", ["torchao", "bitsandbytes-8", "bitsandbytes-4"])
def test_other_quantised_weights(kind, photo):
    """Where these packages are installed; they are no part of what setup installs."""
    pipe = build("flux-dev")
    expected = captured(pipe)
    if kind == "torchao":
        quantization = pytest.importorskip("torchao.quantization")
        quantization.quantize_(pipe.transformer, quantization.Int8WeightOnlyConfig())
    else:
        linear = pytest.importorskip("bitsandbytes").nn
        for name, layer in list(pipe.transformer.named_modules()):
            if type(layer) is torch.nn.Linear and ".attn." in name:
                shape = layer.in_features, layer.out_features, layer.bias is not None
                new = (
                    linear.Linear4bit(*shape, compute_dtype=torch.float32)
                    if kind.endswith("4")
                    else linear.Linear8bitLt(*shape, has_fp16_weights=False)
                )
                new.load_state_dict(layer.state_dict())
                parent, _, last = name.rpartition(".")
                setattr(pipe.transformer.get_submodule(parent), last, new.to("cpu"))
    found = captured(pipe)
    assert not torch.equal(found, expected)
    assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.8
    assert pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps.shape == (2, 80, 120)


@pytest.mark.parametrize("how", ["sequential", "model", "group"])
@pytest.mark.parametrize("name", some("flux-dev", "sd1", quick=1))
def test_offloading(name, how, photo):
    """By accelerate's hooks and diffusers' own; on a CPU nothing moves, but the hooks act."""
    pipe = build(name)
    expected = captured(pipe)
    whole = pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps
    network = pipe.components["unet" if name == "sd1" else "transformer"]
    if how == "group":
        network.enable_group_offload(
            onload_device=torch.device("cpu"), offload_device=torch.device("cpu"),
            offload_type="leaf_level",
        )  # fmt: skip
    elif how == "model":
        pipe.enable_model_cpu_offload(device="cpu")
    else:
        cpu_offload(network, torch.device("cpu"))  # text encoders break in the library itself
    if how == "sequential":
        assert all(weight.is_meta for weight in network.state_dict().values())
    torch.testing.assert_close(captured(pipe), expected)
    masks = pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps
    np.testing.assert_allclose(masks, whole, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_vae_in_tiles_and_slices(dtype):
    """What it encodes in tiles differs a little at their seams; ours is what it gives."""
    pipe = tiny.sd1()
    pipe.vae.tile_sample_min_size, pipe.vae.tile_latent_min_size = 64, 16
    pixels = torch.rand(1, 3, 128, 160, generator=torch.Generator().manual_seed(0)) * 2 - 1
    whole = wrap(pipe).encode_image(pixels)
    pipe.vae.enable_tiling()
    pipe.vae.enable_slicing()
    with torch.no_grad():
        theirs = pipe.vae.encode(pixels).latent_dist.mode() * pipe.vae.config.scaling_factor
    pipe.vae.to(dtype)
    backbone = wrap(pipe)
    ours = backbone.encode_image(pixels)
    assert not torch.allclose(ours, whole, atol=1e-3)
    torch.testing.assert_close(ours, theirs, atol=0.02 if dtype == torch.bfloat16 else 1e-6, rtol=0)
    assert backbone.decode_latents(ours.repeat(2, 1, 1, 1)).shape == (2, 3, 128, 160)


def test_a_cache_of_steps(photo):
    """Steps whose layers were left out have no maps; the others have theirs."""
    pipe = build("flux-dev")
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=10.0))
    first = captured(pipe, guidance_scale=2.0)
    assert len(first) == 1  # of two
    with pytest.raises(ValueError, match=r"call pipe\.transformer\.disable_cache\(\) before"):
        pa.load(pipe).align(photo, ["dog"])
    pipe.transformer.disable_cache()
    whole = captured(pipe, guidance_scale=2.0)
    assert len(whole) == 2
    assert torch.equal(first[0], whole[0])
    assert pa.load(pipe).align(photo, ["dog", "cat"], config=QUICK).heatmaps.shape == (2, 80, 120)
