"""The committed weights do what docs/lab.md says of them, at a size a CPU can check."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline

import pixalign as pa
from pixalign.lab.data import decode, encode, scenes
from pixalign.lab.gates import GateScenes, gates
from pixalign.lab.models import load_classifier
from pixalign.own import EMBEDDED, model_settings
from pixalign.scenes.atlas import class_names

CLASSIFIER = Path(__file__).parent.parent / "models" / "classifier"


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
    held_out = scenes("val", 4096, 192, 128, "cpu", objects=1)
    with torch.no_grad():
        found = load_classifier(CLASSIFIER, "cpu")(held_out.images).argmax(1)
    assert (found == held_out.labels[:, 0]).float().mean() > 0.95


def test_attention_tells_objects_apart(pipe):
    drawn = GateScenes.draw(pipe.vae, pipe.tokenizer, size=128, device="cpu", scenes=24, single=24)
    result = gates(pipe.unet, pipe.text_encoder, drawn)
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
