"""The committed weights do what docs/lab.md says of them, at a size a CPU can check."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image

import pixalign as pa
from lab.attention import GateScenes, gates
from lab.classifier import scene_figures
from lab.clip import describe
from lab.data import decode, encode, rendered, scenes
from lab.hard_negatives import KINDS, wrong_captions
from pixalign.backbones import wrap
from pixalign.backbones.clip import Clip
from pixalign.backbones.locations import EMBEDDED, lab_folder
from pixalign.backbones.model_settings import model_settings
from pixalign.bench.metrics import clip_score
from pixalign.bench.scene_classifier import found_class, load_classifier, look
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.sample import attribute_captions, full_captions

CLASSIFIER = Path(__file__).parents[2] / "lab" / "models" / "classifier"


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


def test_reconstruction(pipe):
    images = scenes("val", 1000, 24, 128, "cpu").images
    again = decode(pipe.vae, encode(pipe.vae, images))
    psnr = -10 * (again - images).square().mean((1, 2, 3)).log10()
    assert psnr.mean() > 30


@pytest.mark.skipif(not CLASSIFIER.is_dir(), reason="the weights are in the repository")
def test_classifier():
    classifier = load_classifier(CLASSIFIER, "cpu")
    single = scenes("val", 4096, 192, 128, "cpu", objects=1)
    found = found_class(look(classifier, single.images)[0])
    assert (found == single.labels[:, 0]).float().mean() > 0.95
    several = rendered(draw_scenes("val", 192), 128, "cpu")
    figures = scene_figures(*look(classifier, several.images), several)
    assert figures["recall"] > 0.9
    assert figures["precision"] > 0.9
    assert figures["colour"] > 0.85


def test_attention_tells_objects_apart(pipe):
    backbone = wrap(pipe)
    drawn = GateScenes.draw(backbone, size=128, device="cpu", scenes=24, single=24)
    result = gates(backbone, drawn)
    assert result["auc_other_all"] > 0.9
    assert result["pointing_first"] > 0.9


def test_heatmaps_point_at_the_objects(pipe):
    config = pa.AlignConfig(elbo_steps=4, collect_steps=4)
    aligner = pa.Aligner(pipe, config=config, own=model_settings(EMBEDDED))
    drawn = scenes("test", 0, 8, 128, "cpu")
    hits = []
    for image, mask, labels in zip(drawn.images, drawn.masks, drawn.labels, strict=True):
        present = sorted({int(label) for label in labels if label >= 0})
        picture = np.round(image.permute(1, 2, 0).numpy() * 255).astype(np.uint8)
        result = aligner.align(picture, [class_names()[label] for label in present])
        for label, heatmap in zip(present, result.heatmaps, strict=True):
            row, column = np.unravel_index(heatmap.argmax(), heatmap.shape)
            hits.append(int(mask[row, column]) == label + 1)
    assert np.mean(hits) > 0.8


def test_size():
    total = sum(file.stat().st_size for file in EMBEDDED.rglob("*") if file.is_file())
    assert total < 24e6


# ---- the models beside the embedded one ----

MODELS = Path(__file__).parents[2] / "lab" / "models"
in_repository = pytest.mark.skipif(
    not (MODELS / "sd2-like").is_dir(), reason="the weights are in the repository"
)
MEGABYTES = {"sd2-like": 6, "sdxl-like": 6, "sd3-like": 12, "clip-like": 3}


def own_bytes(folder):
    """Without what is shared by links."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    shared = {part for part in folder.iterdir() if part.is_symlink()}
    return sum(path.stat().st_size for path in files if not shared & set(path.parents))


@in_repository
def test_the_models_are_small():
    sizes = {name: own_bytes(MODELS / name) for name in MEGABYTES}
    assert all(size <= MEGABYTES[name] * 10**6 for name, size in sizes.items()), sizes
    everything = sum(sizes.values()) + own_bytes(EMBEDDED) + own_bytes(CLASSIFIER)
    assert everything <= 45 * 10**6


@in_repository
@pytest.mark.parametrize(
    ("name", "objective", "other"), [("sd2", "velocity", 0.8), ("sdxl", "epsilon", 0.8),
                                     ("sd3", "flow", 0.75)],
)  # fmt: skip
def test_every_family_tells_objects_apart(name, objective, other):
    aligner = pa.Aligner.from_pretrained(f"lab:{name}", device="cpu")
    assert aligner.backbone.objective == objective
    drawn = GateScenes.draw(aligner.backbone, size=128, device="cpu", scenes=12, single=8)
    result = gates(aligner.backbone, drawn)
    assert result["auc_other_all"] > other
    assert result["pointing_first"] > 0.7


@in_repository
def test_wide_pictures_on_the_joint_attention_model():
    """Its position table reaches twice the native side."""
    aligner = pa.Aligner.from_pretrained("lab:sd3", device="cpu")
    wide = Image.new("RGB", (256, 128), "white")
    config = pa.AlignConfig(elbo_steps=1, collect_steps=1, resize="keep")
    found = aligner.align(wide, ["dog", "cat"], config=config)
    assert found.heatmaps.shape == (2, 128, 256)


@in_repository
def test_clip_looks_closely():
    held_out = describe(draw_scenes("val", 96), 0.5, 1)
    pictures = rendered(held_out.scenes, 128, "cpu").images
    images = [Image.fromarray((p * 255).round().byte().permute(1, 2, 0).numpy()) for p in pictures]
    rng = np.random.default_rng(0)
    right = clip_score(images, attribute_captions(held_out.scenes), device="cpu")
    assert right.model == "lab:clip"
    for kind in KINDS:
        texts = wrong_captions(held_out.scenes, kind, rng)
        wrong = clip_score(images, texts, device="cpu")
        differs = np.array(texts) != np.array(attribute_captions(held_out.scenes))
        assert (wrong.scores < right.scores)[differs].mean() >= 0.85, kind
    plain = full_captions(held_out.scenes)
    clip = Clip(lab_folder("lab:clip"), torch.device("cpu"))
    scores = clip.see(images) @ clip.read(plain).T
    chosen = [scores[i, i - 31 : i + 1].argmax() == 31 for i in range(31, 96)]
    assert np.mean(chosen) >= 0.85
