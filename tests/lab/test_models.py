"""The committed weights do what docs/lab.md says of them, at a size a CPU can check."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image

import pixalign as pa
from lab import attention
from lab.attention import GateScenes, measure_gates
from lab.classifier import found_class, load_classifier, look, scene_figures
from lab.clip import describe
from lab.data import decode, encode, rendered, scenes
from lab.hard_negatives import KINDS, wrong_captions
from pixalign.backbones.clip import Clip
from pixalign.backbones.locations import EMBEDDED, MARKER, lab_folder
from pixalign.bench.metrics import clip_score
from pixalign.diffusion.sampling import to_pictures
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.sample import attribute_captions, full_captions

MODELS = Path(__file__).parents[2] / "lab" / "models"
CLASSIFIER = MODELS / "classifier"


def sizes(few, many):
    """So many scenes, and in `make test-all` also more."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def pipe():
    """Loaded as anybody would."""
    loaded = StableDiffusionPipeline.from_pretrained(EMBEDDED, dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_plain_text_to_image_call(pipe):
    generator = torch.Generator().manual_seed(0)
    call = {"num_inference_steps": 8, "guidance_scale": 4.0, "output_type": "np"}
    image = pipe("a photo of strawberry", generator=generator, **call).images[0]
    assert image.shape == (128, 128, 3)
    red, _, blue = image.reshape(-1, 3).T
    assert (red - blue).max() > 0.3  # something red is there


@sizes(8, 24)
def test_reconstruction(pipe, count):
    images = scenes("val", 1000, count, 128, "cpu").images
    again = decode(pipe.vae, encode(pipe.vae, images))
    psnr = -10 * (again - images).square().mean((1, 2, 3)).log10()
    assert psnr.mean() > 30


@sizes(66, 192)
def test_classifier(count):
    classifier = load_classifier(CLASSIFIER, "cpu")
    single = scenes("val", 4096, count, 128, "cpu", objects=1)
    found = found_class(look(classifier, single.images)[0])
    assert (found == single.labels[:, 0]).float().mean() > 0.95
    several = rendered(draw_scenes("val", count), 128, "cpu")
    figures = scene_figures(*look(classifier, several.images), several)
    assert figures["recall"] > 0.9
    assert figures["precision"] > 0.9
    assert figures["colour"] > 0.85


@pytest.fixture(scope="module")
def model():
    return pa.load(device="cpu")


@sizes(6, 24)
@pytest.mark.parametrize(
    ("name", "objective", "other", "pointing"),
    [("sd1", "epsilon", 0.9, 0.9), ("sd2", "velocity", 0.8, 0.7), ("sdxl", "epsilon", 0.8, 0.7),
     ("sd3", "flow", 0.75, 0.7), ("flux", "flow", 0.72, 0.3)],
)  # fmt: skip
def test_attention_tells_objects_apart(model, name, objective, other, pointing, count, monkeypatch):
    if count < 24:
        monkeypatch.setattr(attention, "POSITIONS", (0.1,))
    backbone = (model if name == "sd1" else pa.load(f"lab:{name}", device="cpu")).backbone
    assert backbone.objective == objective
    drawn = GateScenes.draw(backbone, size=128, device="cpu", scenes=count, single=count)
    result = measure_gates(backbone, drawn)
    assert result["auc_other_all"] > other
    assert result["pointing_first"] > pointing


def aligned(model, count, objects, config):
    """Of each pair of a scene and a class: the heatmap, and where the object is, bool [H, W]."""
    drawn = scenes("test", 0, count, 128, "cpu", objects=objects)
    present = [sorted({int(label) for label in row if label >= 0}) for row in drawn.labels]
    names = [[class_names()[label] for label in labels] for labels in present]
    found = model.align(to_pictures(drawn.images), names, config=config)
    for result, mask, labels in zip(found, drawn.masks.numpy(), present, strict=True):
        for place, label in enumerate(labels):
            yield result, place, mask == label + 1


@sizes(6, 8)
def test_heatmaps_point_at_the_objects(model, count):
    steps = 1 if count < 8 else 4
    config = pa.AlignConfig(elbo_steps=steps, collect_steps=max(steps, 2))
    pairs = aligned(model, count, None, config)
    hits = [truth.flat[result.heatmaps[place].argmax()] for result, place, truth in pairs]
    assert np.mean(hits) > 0.8


@sizes(6, 8)
def test_single_objects_are_found(model, count):
    inside, ious = [], []
    config = pa.AlignConfig.uncalibrated(collect_steps=1)
    for result, _, truth in aligned(model, count, 1, config):
        inside.append(truth.flat[result.heatmaps[0].argmax()])
        mask = result.mask() == 1
        ious.append((mask & truth).sum() / (mask | truth).sum())
    assert np.mean(inside) >= 0.9
    assert np.mean(ious) >= 0.6


# ---- the models beside the embedded one ----

MEGABYTES = {"sd2-like": 6, "sdxl-like": 6, "sd3-like": 12, "flux-like": 6, "clip-like": 3,
             EMBEDDED: 24}  # fmt: skip


def own_bytes(folder):
    """Without what is shared by links."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    shared = {part for part in folder.iterdir() if part.is_symlink()}
    return sum(path.stat().st_size for path in files if not shared & set(path.parents))


def test_the_models_are_small():
    sizes = {name: own_bytes(MODELS / name) for name in MEGABYTES}
    assert all(size <= MEGABYTES[name] * 10**6 for name, size in sizes.items()), sizes
    assert sum(sizes.values()) + own_bytes(CLASSIFIER) <= 51 * 10**6


def test_the_folder_says_whose_it_is():
    marker = json.loads((MODELS / MARKER).read_text())
    assert marker == {"format": 1, "models": ["sd2", "sdxl", "sd3", "flux", "clip", "classifier"]}
    for name in marker["models"]:
        assert lab_folder(f"lab:{name}").parent == MODELS


def test_wide_pictures_on_the_joint_attention_model():
    """Its position table reaches twice the native side."""
    model = pa.load("lab:sd3", device="cpu")
    wide = Image.new("RGB", (256, 128), "white")
    config = pa.AlignConfig(elbo_steps=1, collect_steps=1, resize="keep")
    found = model.align(wide, ["dog", "cat"], config=config)
    assert found.heatmaps.shape == (2, 128, 256)


def test_clip_looks_closely():
    held_out = describe(draw_scenes("val", 72), 0.5, 1)
    images = to_pictures(rendered(held_out.scenes, 128, "cpu").images)
    rng, clip = np.random.default_rng(0), Clip(lab_folder("lab:clip"), torch.device("cpu"))
    seen, rich = clip.see(images), attribute_captions(held_out.scenes)
    right = (seen * clip.read(rich)).sum(1)
    for kind in KINDS:
        texts = wrong_captions(held_out.scenes, kind, rng)
        wrong = (seen * clip.read(texts)).sum(1)
        differs = torch.tensor([a != b for a, b in zip(texts, rich, strict=True)])
        assert (wrong < right)[differs].float().mean() >= 0.85, kind
    scores = seen @ clip.read(full_captions(held_out.scenes)).T
    chosen = [scores[i, i - 31 : i + 1].argmax() == 31 for i in range(31, 72)]
    assert np.mean(chosen) >= 0.85
    score = clip_score(images[:2], rich[:2], model="lab:clip", device="cpu")
    assert score.model == "lab:clip"
    np.testing.assert_allclose(score.scores, 100 * right[:2].numpy(), rtol=1e-4)
