"""Word maps of running video pipelines, and word maps as animations."""

import numpy as np
import pytest
import torch
from PIL import Image

import pixalign as pa
import zoo
from helpers import assert_same, fingerprint
from pixalign.attention.capture import _covering
from pixalign.backbones import wrap
from pixalign.pictures.drawing import heat

FRAMES = {"wan": (5, 3), "ltx": (5, 3)}  # of the video, of its latents
PROMPTS = ["a red dog and a car", "two cat and a tree"]


def run(pipe, prompt, output="latent", size=(64, 64), **options):
    height, width = size
    call = {"num_frames": FRAMES[wrap(pipe).family][0], "num_inference_steps": 2, **options}
    generator = torch.Generator().manual_seed(0)
    call |= {"height": height, "width": width, "output_type": output, "generator": generator}
    return pipe(prompt=prompt, **call).frames


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("name", FRAMES)
def test_maps_have_frames(name, guidance):
    pipe = zoo.built(name)
    plain, before = run(pipe, PROMPTS, guidance_scale=guidance), fingerprint(pipe.transformer)
    with pa.load(pipe).capture(["dog", "tree"]) as maps:
        assert torch.equal(run(pipe, PROMPTS, guidance_scale=guidance), plain)
    assert torch.equal(run(pipe, PROMPTS, guidance_scale=guidance), plain)
    assert_same(before, fingerprint(pipe.transformer))
    side = 8
    assert maps["dog"].shape == (2, 2, FRAMES[name][1], side, side)
    assert maps["dog"].dtype == torch.float32
    assert (maps["dog"][:, 0] > 0).all()
    assert not maps["dog"][:, 1].any()
    assert not maps["tree"][:, 0].any()
    heatmaps = maps.heatmaps((48, 80))
    assert heatmaps.shape == (2, 2, FRAMES[name][1], 48, 80)
    assert heatmaps[0, 0].amin() == 0
    assert heatmaps[0, 0].amax() == 1


@pytest.mark.parametrize("name", FRAMES)
def test_every_cell_is_where_its_latent_is(name):
    """Of a wide video: the first layer's map moves most where one latent cell is changed."""
    pipe, size = zoo.built(name), (64, 96)
    backbone = wrap(pipe)
    channels, height, width = backbone.latent_shape(size)
    frames = FRAMES[name][1]
    latents = torch.randn(1, channels, frames, height, width, generator=torch.Generator())

    def first_layer(given):
        if backbone.packed:
            given = given.flatten(2).transpose(1, 2)
        options = {"guidance_scale": 1.0, "latents": given}
        model = pa.load(pipe)
        model.backbone.sites = model.backbone.sites[:2]
        with model.capture(["dog"]) as maps:
            run(pipe, "a red dog", size=size, **options)
        return maps["dog"][0, 0]

    plain = first_layer(latents)
    grid = tuple(plain.shape)
    assert grid == (frames, height // backbone.patch, width // backbone.patch)
    generator = torch.Generator().manual_seed(1)
    for cell in torch.randint(plain.numel(), (6,), generator=generator).tolist():
        frame, row, column = np.unravel_index(cell, grid)
        changed, side = latents.clone(), backbone.patch
        rows, columns = (slice(side * i, side * (i + 1)) for i in (row, column))
        changed[:, :, frame, rows, columns] += 3
        moved = (first_layer(changed) - plain).abs()
        assert np.unravel_index(int(moved.argmax()), grid) == (frame, row, column)


@pytest.mark.parametrize("ending", ["webp", "gif"])
def test_videos_are_saved_with_their_maps(ending, tmp_path):
    pipe = zoo.built("wan")
    with pa.load(pipe).capture(["dog"]) as maps:
        (video,) = run(pipe, "a red dog", output="pil")
    assert len(video) == 5
    alone = maps.save(tmp_path / f"alone.{ending}", "dog")
    over = maps.save(tmp_path / f"over.{ending}", "dog", pictures=video, fps=20)
    with Image.open(alone) as animation:
        assert (animation.n_frames, animation.size) == (3, (8, 8))
    with Image.open(over) as animation:
        assert (animation.n_frames, animation.size) == (5, (64, 64))
        animation.seek(4)
        last = np.asarray(animation.convert("RGB"), dtype=float)
        assert animation.info["duration"] == 50
    upon = heat(maps.heatmaps((64, 64))[0, 0, 2].numpy())  # the last of three latent frames
    expected = np.asarray(Image.blend(video[4], upon, 0.6), dtype=float)
    assert np.abs(last - expected).mean() < 12
    assert np.abs(last - np.asarray(video[4], dtype=float)).mean() > 24
    assert not list(tmp_path.glob("*.tmp*"))


def test_pictures_are_saved_over_the_steps(sd1, tmp_path):
    with pa.load(sd1).capture(["dog"]) as maps:
        drawn = sd1("a red dog", num_inference_steps=4, height=64, width=64).images
    path = maps.save(tmp_path / "dog.webp", "dog", pictures=drawn)
    with Image.open(path) as animation:
        assert (animation.n_frames, animation.size) == (len(maps), (64, 64))
    with pytest.raises(ValueError, match=r"is '\.mp4'; allowed: '\.webp', '\.gif'"):
        maps.save(tmp_path / "dog.mp4", "dog")
    with pytest.raises(ValueError, match="fps is 0"):
        maps.save(tmp_path / "dog.gif", "dog", fps=0)
    with pytest.raises(ValueError, match="word is 'cat'; captured are dog"):
        maps.save(tmp_path / "dog.gif", "cat")


def test_latent_frames_cover_frames():
    """Wan's 81 frames are 21 of latents: the first is one, each other four."""
    covering = _covering(81, 21)
    assert covering[:6] == [0, 1, 1, 1, 1, 2]
    assert covering[-5:] == [19, 20, 20, 20, 20]
    assert _covering(3, 3) == [0, 1, 2]
    assert _covering(1, 1) == [0]


def test_a_picture_is_a_video_of_one_frame(photo):
    found = pa.load(zoo.built("wan")).align(
        photo, ["dog", "cat"], config=pa.AlignConfig(elbo_steps=2, collect_steps=1)
    )
    assert found.heatmaps.shape == (2, 80, 120)


def test_videos_that_cannot_be_read_are_refused():
    pipe = zoo.cases()["wan"].build()
    with (
        pytest.raises(ValueError, match="cleans 'a  dog' to 'a dog'"),
        pa.load(pipe).capture(["dog"]),
    ):
        run(pipe, "a  dog")
    pipe.transformer.register_to_config(added_kv_proj_dim=8)
    with pytest.raises(ValueError, match="this Wan begins with a picture"):
        pa.load(pipe)
    two = zoo.cases()["wan"].build()
    two.register_modules(transformer_2=two.transformer)
    with pytest.raises(ValueError, match="two networks that take turns"):
        pa.load(two)
