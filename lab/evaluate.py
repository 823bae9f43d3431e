"""Sample quality: is the object that was asked for in the picture, by the lab's classifier?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.classifier import found_class, load_classifier, look
from lab.networks import load_pipeline
from pixalign.backbones.load import resolve_device
from pixalign.bench.metrics import tertiles
from pixalign.core.files import write_json
from pixalign.diffusion.sampling import to_pictures
from pixalign.pictures.grid import in_rows, picture_grid
from pixalign.pictures.saving import write_png
from pixalign.scenes.atlas import class_names, training_counts

THIRDS = ("frequent", "common", "rare")


def frequency_thirds() -> Tensor:
    """int64 [C]: each class's place in THIRDS, by its share of the training objects."""
    return torch.tensor([THIRDS.index(third) for third in tertiles(training_counts()).values()])


def accuracies(found: Tensor, wanted: Tensor) -> dict[str, Any]:
    """Shares found of int64 [B] classes: over images, over classes, and by frequency."""
    right = (found == wanted).double()
    counts = torch.bincount(wanted, minlength=len(class_names()))
    by_class = torch.bincount(wanted, right, minlength=len(counts)) / counts.clamp_min(1)
    present, thirds = counts > 0, frequency_thirds()
    figures = {"accuracy": right.mean(), "accuracy_classes": by_class[present].mean()}
    for third, name in enumerate(THIRDS):
        figures[f"accuracy_{name}"] = by_class[present & (thirds == third)].mean()
    return {name: float(value) for name, value in figures.items()}


@torch.no_grad()
def draw_samples(
    pipe: Any,
    prompts: Sequence[str],
    *,
    seed: int = 0,
    steps: int = 30,
    guidance: float = 4.0,
    batch: int = 256,
) -> Tensor:
    """Images float32 [B, 3, s, s] in [0, 1] on the CPU; image i depends on (seed, i) alone."""
    images = []
    for first in range(0, len(prompts), batch):
        part = list(prompts[first : first + batch])
        seeds = range(seed * 1_000_003 + first, seed * 1_000_003 + first + len(part))
        noise = [torch.Generator().manual_seed(number) for number in seeds]
        options = {"num_inference_steps": steps, "output_type": "pt", **_guiding(pipe, guidance)}
        images.append(pipe(part, generator=noise, **options).images.float().cpu())
    return torch.cat(images)


def _guiding(pipe: Any, guidance: float) -> dict[str, Any]:
    """How a pipeline is told its guidance; FLUX.1's means another one by that word."""
    if type(pipe).__name__ != "FluxPipeline":
        return {"guidance_scale": guidance}
    length = pipe.tokenizer_2.model_max_length
    return {"true_cfg_scale": guidance, "negative_prompt": "", "max_sequence_length": length}


def evaluate_quality(
    pipeline: str | Path,
    classifier: Path,
    out: Path,
    *,
    per_class: int = 8,
    device: str = "auto",
    **options: Any,
) -> dict[str, Any]:
    """Accuracies of a classifier on ``per_class`` samples of each class, ``options`` for drawing.

    Writes quality.json and a grid with one sample of each class.
    """
    device, names = str(resolve_device(device)), class_names()
    pipe, known = load_pipeline(pipeline, device), load_classifier(classifier, device)
    wanted = torch.arange(len(names)).repeat_interleave(per_class)
    images = draw_samples(pipe, [f"a photo of {names[i]}" for i in wanted.tolist()], **options)
    with torch.no_grad():
        figures = accuracies(found_class(look(known, images)[0]).cpu(), wanted)
    write_grid(images[::per_class], out / "classes.png", columns=12)
    write_json(out / "quality.json", figures)
    return figures


def write_grid(images: Tensor, path: Path, columns: int) -> None:
    """Images [B, 3, h, w] in [0, 1] as one picture, in rows of ``columns``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = to_pictures(images.detach().float().clamp(0, 1))
    write_png(path, picture_grid(in_rows(pictures, columns), gap=2))
