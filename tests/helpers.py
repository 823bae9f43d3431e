"""What several tests share: comparisons, fingerprints, batches that can be counted or refused."""

import copy
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch

import pixalign as pa
import tiny
from pixalign.alignment import elbo
from pixalign.alignment.plan import NoisedTimesteps
from pixalign.backbones import wrap
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import NetworkCall
from pixalign.diffusion.schedule import FlowSchedule
from pixalign.diffusion.timesteps import positions
from pixalign.model import load


class ConfiguredModel(pa.Model):
    """A model with a config of its own, which it takes unless told otherwise, and "elbo"."""

    config = None

    def align(self, image, classes, *, config=None, method=None, **options):
        config = config or self.config
        method = method or (config.method if config else None) or "elbo"
        return super().align(image, classes, config=config, method=method, **options)

    def resolve(self, config=None, method=None, calibrate=None):
        config = config or self.config
        method = method or (config.method if config else None) or "elbo"
        return super().resolve(config, method, calibrate)


def model_of(model=None, config=None, settings=None, **options):
    """What `pa.load` gives, with a config, and with settings in the place of the model's own."""
    made = load(model, **options)
    made.__class__ = ConfiguredModel
    made.config = config
    if settings is not None:
        made.settings = settings
    return made


@cache
def small(name):
    """A tiny pipeline at 64 pixels, shared: never change it."""
    pipe = tiny.BUILDERS[name]()
    wrap(pipe).denoiser.register_to_config(sample_size=16)
    return pipe


def same(one, other):
    names = ("heatmaps", "losses", "scores")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def assert_close(one, other):
    """Equal but for rounding: other batches add up in another order."""
    assert one.phrases == other.phrases
    assert one.config == other.config
    for name in ("heatmaps", "losses", "elbo", "scores"):
        found, expected = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    for key in ("prompts", "timesteps", "seed", "source", "model"):
        assert one.provenance[key] == other.provenance[key]


TEXTS = ["a photo of dog", "a photo of cat", "a photo of zebra"]


def setting(pipe, count=4, size=(16, 24)):
    backbone = wrap(pipe)
    generator = torch.Generator().manual_seed(0)
    channels = backbone.latent_channels
    latents = torch.randn(1, channels, *size, generator=generator)
    noise = torch.randn(count, channels, *size, generator=generator)
    steps = backbone.schedule.at_positions(positions("even", count))
    return backbone, latents, noise, steps


def errors(backbone, latents, noise, steps, batch_size="auto", **options):
    """What `text_errors` says of one image under TEXTS."""
    bar, size = Progress(0, "", show=False), BatchSize(batch_size)
    noised = [NoisedTimesteps(steps, noise)]
    return elbo.text_errors(backbone, latents, [TEXTS], noised, size, bar, **options)[0]


def losses(*setting, **options):
    return errors(*setting, **options).losses


def refuse_above(limit, module, seen):
    """A hook that behaves like an allocator with room for ``limit`` images."""

    def hook(module, args, kwargs):
        batch = len(args[0] if args else next(iter(kwargs.values())))
        seen.append(batch)
        if batch > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    return module.register_forward_pre_hook(hook, with_kwargs=True)


LONG = ["dog", "toothbrush beside a refrigerator", "skateboard under an umbrella",
        "parking meter above a hydrant"]  # fmt: skip


def pictures(*sizes):
    return [tiny.photo(*size, seed=seed) for seed, size in enumerate(sizes)]


def batches(pipe, work):
    """What the work gives, and the sizes of the batches that went through the network."""
    seen = []
    handle = refuse_above(10_000, wrap(pipe).denoiser, seen)
    try:
        return work(), seen
    finally:
        handle.remove()


def a_visit(count, generator, shape=(2, 3, 4)):
    steps = FlowSchedule().at_positions(positions("random", count, generator=generator))
    return NoisedTimesteps(steps, torch.randn(count, *shape, generator=generator))


def inputs(backbone, batch=2, size=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    height, width = size or (side // backbone.vae_factor for side in backbone.native_size)
    channels = backbone.latent_channels
    z = torch.randn(batch, channels, height, width, generator=generator)
    steps = backbone.schedule.at_positions(positions("even", batch))
    return z, steps, backbone.encode_text([f"a photo of dog, cat {i}" for i in range(batch)])


def bare_network(unet):
    """A UNet without a pipeline, as what taps are attached to."""

    def describe_call(args, kwargs):
        return NetworkCall(args[0].shape[-2:], kwargs["encoder_hidden_states"], 0.0)

    return SimpleNamespace(denoiser=unet, attention_backends=dict, describe_call=describe_call)


def fingerprint(module):
    """Everything that attention surgery could leave behind."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    hooks = [
        (len(m._forward_pre_hooks), len(m._forward_hooks), sorted(vars(m)))
        for m in module.modules()
    ]
    return (
        state,
        hooks,
        {name: id(m.processor) for name, m in module.named_modules() if hasattr(m, "processor")},
    )


def assert_same(before, after):
    assert before[1:] == after[1:]
    assert before[0].keys() == after[0].keys()
    for name, weight in before[0].items():  # what is offloaded has no values between passes
        assert weight.is_meta == after[0][name].is_meta
        pair = (weight, after[0][name])
        if type(weight).__module__.startswith("torchao"):  # which does not compare its tensors
            pair = tuple(each.dequantize() for each in pair)
        assert weight.is_meta or torch.equal(*pair)


def everything(pipe):
    """A pipeline's whole state: weights, buffers, configs, hooks, attributes."""
    found = {}
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module):
            for key, value in part.state_dict().items():
                where = value.dtype, value.device, value.data_ptr()
                found[f"{name}.{key}"] = (value.clone(), *where)
            found[f"{name}.hooks"] = [
                (len(m._forward_pre_hooks), len(m._forward_hooks), m.training)
                for m in part.modules()
            ]
        elif part is not None:
            about = getattr(part, "config", None) or getattr(part, "vocab", None)
            found[name] = copy.deepcopy(about)
    found["attributes"] = sorted(vars(pipe))
    found["scheduler state"] = str(vars(pipe.scheduler))
    return found


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other
