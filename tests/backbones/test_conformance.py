"""Every family against its own pipeline, by listening to it at tiny size."""

import contextlib
import copy

import pytest
import torch

import pixalign as pa
import tiny
import zoo
from helpers import assert_same, fingerprint, inputs
from pixalign.attention import AttentionReader, AttentionWriter
from pixalign.backbones import wrap
from pixalign.diffusion.objectives import per_step

STEPS, WORDS = 2, ("dog", "tree")
QUICK = {"elbo_steps": 2, "collect_steps": 1}


@pytest.fixture(params=sorted(zoo.cases()))
def name(request):
    return request.param


def call(pipe, prompt, size=None, **options):
    """The pipeline's own latents, from one noise; Z-Image writes into lists that it is given."""
    prompt, options = copy.deepcopy((prompt, options))
    height, width = size or wrap(pipe).native_size
    how = {"num_inference_steps": STEPS, "output_type": "latent", "height": height, "width": width}
    generator = torch.Generator().manual_seed(0)
    made = pipe(prompt=prompt, generator=generator, **how, **options)
    return made.frames if hasattr(made, "frames") else made.images


@contextlib.contextmanager
def overheard(scheduler):
    """What a pipeline hands to its scheduler: (output, timestep, sample) at each step."""
    heard, step = [], scheduler.step

    def listening(output, timestep, sample, *args, **kwargs):
        heard.append((output.clone(), float(timestep), sample.clone()))
        return step(output, timestep, sample, *args, **kwargs)

    scheduler.step = listening
    try:
        yield heard
    finally:
        del scheduler.step


def told(schedule, time):
    """The schedule's step, twice, of which the network is told by that time."""
    place = int((schedule.table.time - time).abs().argmin())
    assert abs(float(schedule.table.time[place]) - time) < 1e-5
    return schedule.at_indices([place] * 2)


@pytest.mark.parametrize("shape", ["square", "wide"])
def test_our_forward_is_the_pipelines(name, shape):
    """At the pipeline's own noise levels, on its own latents, under the same prompts."""
    pipe, plain = zoo.built(name), zoo.cases()[name].plain
    backbone, prompts = wrap(pipe), ["a red dog", "two cat and a tree"]
    height, width = size = backbone.native_size
    if shape == "wide":  # of no more pixels
        size = (height // 2, width)
    with overheard(pipe.scheduler) as heard:
        call(pipe, prompts, size, **plain)
    assert len(heard) == STEPS
    latent = backbone.latent_shape(size)[1:]
    if backbone.family == "hidream" and shape == "wide":  # whose pipeline enlarges small pictures
        latent = tuple(heard[0][2].shape[-2:])

    def as_latents(tensor):
        if tensor.ndim == 5:  # a video of one frame
            tensor = tensor[:, :, 0]
        return (backbone.unpack(tensor, latent) if tensor.ndim == 3 else tensor).float()

    flow = backbone.objective == "flow"
    path = backbone.path(STEPS, latent)
    text = backbone.told(backbone.encode_text(prompts), plain.get("guidance_scale", 1.0))
    for index, (output, timestep, sample) in enumerate(heard):
        z = as_latents(sample)
        steps = path.at(index, 2) if flow else told(backbone.schedule, timestep)
        if getattr(pipe.scheduler, "init_noise_sigma", 1) > 1:  # latents plus ever more noise
            z = z * per_step(steps.alpha, z) / pipe.scheduler.config.get("sigma_data", 1.0)
        found = backbone.predict(z, steps, text)
        handed = -as_latents(output) if zoo.cases()[name].opposite else as_latents(output)
        torch.testing.assert_close(found, handed, atol=3e-5, rtol=1e-4)
        if flow and index + 1 < STEPS:  # and its step is ours
            moved = path.advance(backbone.objective, found, z, index)
            following = as_latents(heard[index + 1][2])
            torch.testing.assert_close(moved, following, atol=1e-4, rtol=1e-3)


def context_free(pipe):
    """A copy whose text encoders read each token by itself: what attends says nothing."""
    parts = {}
    for part in [name for name in pipe.components if name.startswith("text_encoder")]:
        if getattr(pipe, part, None) is not None:
            parts[part] = encoder = copy.deepcopy(getattr(pipe, part))
            for key, module in encoder.named_modules():
                if key.split(".")[-1] in ("o", "out_proj", "o_proj", "dense"):
                    torch.nn.init.zeros_(module.weight)
    alone = copy.copy(pipe)
    alone.register_modules(**parts)
    return alone


@pytest.mark.parametrize("place", [0, 1])
def test_swapping_a_word_moves_just_its_columns(name, place):
    backbone = wrap(context_free(zoo.built(name)))
    texts = ["a dog and a red car with a cat" if not place else "a red car and a dog, a cat"]
    texts.append(texts[0].replace("dog", "tree"))
    first, second = backbone.encode_text(texts).embeds
    moved = (first != second).any(1).nonzero()[:, 0].tolist()
    for text, word in zip(texts, WORDS, strict=True):
        start = text.index(word)
        span = (start, start + len(word))
        (columns,) = backbone.columns(text, [(span,)], len(first))
        assert list(columns) == moved


def test_reading_and_writing_leave_every_bit(name):
    backbone = wrap(zoo.built(name))
    given, before = inputs(backbone), fingerprint(backbone.denoiser)
    plain = backbone.predict(*given)
    labels = {site: f"{site.factor}" for site in backbone.sites if site.reads_image}
    reader, writer = AttentionReader(backbone.sites, labels), AttentionWriter(backbone.sites)
    length = given[2].embeds.shape[1]
    reader.columns = torch.eye(length).expand(2, -1, -1)
    with reader.attached(backbone), writer.attached(backbone):
        assert torch.equal(backbone.predict(*given), plain)
    for site in backbone.sites:
        if site.reads_text:  # all attention goes to the image, to words, or to further tokens
            text = reader.cross[site].sum(1)
            assert (text > 0).all()
            assert (text < 1 + 1e-5).all()
    for label in set(labels.values()):
        rows = reader.self_mean(label).sum(1)
        assert (rows < 1 + 1e-5).all()
    writer.sources, writer.targets = torch.tensor([0]), torch.tensor([1])
    writer.edit = lambda source, target, grid: target
    with writer.attached(backbone):
        same = backbone.predict(*given)
    torch.testing.assert_close(same, plain, atol=1e-5, rtol=1e-4)
    assert torch.equal(same[0], plain[0])
    assert torch.equal(backbone.predict(*given), plain)
    assert_same(before, fingerprint(backbone.denoiser))


def test_maps_follow_the_picture_and_the_words(name):
    """A latent that is changed in one token's cells moves that row of the maps first."""
    backbone = wrap(zoo.built(name))
    z, steps, text = inputs(backbone, batch=1)
    site = next(site for site in backbone.sites if site.reads_text)
    reader = AttentionReader([site], per_head=True)
    reader.columns = torch.eye(text.embeds.shape[1])[None]
    maps = []
    other, cell = z.clone(), backbone.sites[0].factor
    other[..., -cell:, :cell] += 1  # the lowest row's first token
    for latents in (z, other):
        with reader.attached(backbone):
            backbone.predict(latents, steps, text)
        own = reader.cross[site][0]
        maps.append(own / own.sum(1, True))  # among the words, a row depends on its token alone
    moved = (maps[0] - maps[1]).abs().amax((0, 1))
    row, column = divmod(int(moved.argmax()), moved.shape[1])
    reach = 2 if site.place == "down" else 0  # a UNet's convolutions carry the change further
    assert row >= len(moved) - 1 - reach
    assert column <= reach


def test_capture_hears_the_pipelines_own_call(name):
    """Words at every step, by whatever order guidance runs; the pictures do not change a bit."""
    pipe = zoo.built(name)
    plain = call(pipe, ["a red dog", "a tree"], **zoo.cases()[name].guided)
    before = fingerprint(wrap(pipe).denoiser)  # diffusers leaves something at the first call
    with pa.load(pipe).capture(["dog", "tree"]) as maps:
        heard = call(pipe, ["a red dog", "a tree"], **zoo.cases()[name].guided)
    assert torch.equal(plain, heard)
    assert torch.equal(call(pipe, ["a red dog", "a tree"], **zoo.cases()[name].guided), plain)
    assert_same(before, fingerprint(wrap(pipe).denoiser))
    steps, images = maps["dog"].shape[:2]
    assert (steps, images) == (STEPS, 2)
    assert maps["dog"][:, 0].amax() > 0
    assert not maps["dog"][:, 1].any()  # the second prompt has no dog
    assert not maps["tree"][:, 0].any()
    with pa.load(pipe).capture(["dog"]) as alone:
        call(pipe, "a red dog", **zoo.cases()[name].plain)
    assert alone["dog"].shape == (STEPS, 1, *maps["dog"].shape[2:])
    frames = maps["dog"].shape[2:-2]  # of videos
    assert maps.heatmaps((20, 30)).shape == (2, 2, *frames, 20, 30)


def test_alignment_runs_whole(name, photo):
    """Many classes, a picture of another shape, a phrase, a caption, and every method of ours."""
    model = pa.load(zoo.built(name))
    letters = [f"{a}{b}" for a in "abcde" for b in "fghij"]
    result = model.align(photo, letters, config=pa.AlignConfig(**QUICK))
    assert result.heatmaps.shape == (25, 80, 120)
    wide = tiny.photo(320, 100)
    keep = pa.AlignConfig(resize="keep", **QUICK)
    for method in ("dense", "elbo", "attention", "likelihood"):
        found = model.align(
            wide, ["dog", pa.Phrase("cat", "a red cat")], method=method, config=keep
        )
        assert found.heatmaps.shape == (2, 100, 320)
        assert found.heatmaps.max(axis=(1, 2)).min() > 0.9
    said = model.align(photo, ["dog", "cat"], caption="a dog and a red cat", config=keep)
    assert said.provenance["prompts"] == ["a dog and a red cat"]
    again = model.align(photo, ["dog", "cat"], caption="a dog and a red cat", config=keep)
    assert (said.heatmaps == again.heatmaps).all()
