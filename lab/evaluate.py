"""Sample quality: is the object that was asked for in the picture, by the lab's classifier?

``python -m pixalign.lab.evaluate --pipeline RUN/pipeline --classifier RUN --out DIR``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.networks import load_pipeline
from lab.sheets import write_sheet
from pixalign.bench.scene_classifier import found_class, load_classifier, look
from pixalign.scenes.atlas import class_names, training_shares


def frequency_thirds() -> Tensor:
    """int64 [C]: 0 for the most frequent third of the classes in training, 2 for the rarest."""
    order = torch.as_tensor(training_shares()).argsort(descending=True, stable=True)
    thirds = torch.empty_like(order)
    thirds[order] = torch.arange(len(order)) * 3 // len(order)
    return thirds


def accuracies(found: Tensor, wanted: Tensor) -> dict[str, Any]:
    """Shares found of int64 [B] classes: over images, over classes, and by frequency."""
    right = (found == wanted).double()
    counts = torch.bincount(wanted, minlength=len(class_names()))
    by_class = torch.bincount(wanted, right, minlength=len(counts)) / counts.clamp_min(1)
    present, thirds = counts > 0, frequency_thirds()
    figures = {"accuracy": right.mean(), "accuracy_classes": by_class[present].mean()}
    for third, name in enumerate(("frequent", "middle", "rare")):
        figures[f"accuracy_{name}"] = by_class[present & (thirds == third)].mean()
    return {name: float(value) for name, value in figures.items()}


@torch.no_grad()
def generate(
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
        noise = [
            torch.Generator().manual_seed(seed * 1_000_003 + first + i) for i in range(len(part))
        ]
        made = pipe(
            part,
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=noise,
            output_type="pt",
        ).images
        images.append(made.float().cpu())
    return torch.cat(images)


@torch.no_grad()
def sample_quality(
    pipe: Any, classifier: nn.Module, *, per_class: int = 8, **options: Any
) -> tuple[dict[str, Any], Tensor]:
    """Accuracies of the classifier on ``per_class`` pictures of each class, and the pictures."""
    names = class_names()
    wanted = torch.arange(len(names)).repeat_interleave(per_class)
    images = generate(pipe, [f"a photo of {names[i]}" for i in wanted.tolist()], **options)
    found = found_class(look(classifier, images)[0])
    return accuracies(found.cpu(), wanted), images


def main() -> None:
    """Judge a saved pipeline; writes quality.json and a sheet with one picture of each class."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", type=Path, required=True)
    parser.add_argument("--classifier", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-class", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    pipe = load_pipeline(args.pipeline, args.device)
    figures, images = sample_quality(
        pipe,
        load_classifier(args.classifier, args.device),
        per_class=args.per_class,
        steps=args.steps,
        guidance=args.guidance,
    )
    write_sheet(images[:: args.per_class], args.out / "classes.png", columns=12)
    (args.out / "quality.json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
