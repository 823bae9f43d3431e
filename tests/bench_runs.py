"""Small runs on disk, of random heatmaps that lean towards the truth."""

from dataclasses import dataclass

import numpy as np
import torch

from pixalign.bench.metrics import THRESHOLDS, Tally, tally
from pixalign.bench.spec import load_spec
from pixalign.bench.store import ImageRow, Run
from pixalign.methods import METHODS

CLASSES = ("dog", "cat", "car", "tree", "hot dog", "boat")
COUNTS = dict(zip(CLASSES, (900, 50, 400, 70, 5, 10), strict=True))
SIZE = (9, 8)
MODEL = {
    "name": "embedded",
    "id": "sd1-like",
    "family": "sd",
    "objective": "epsilon",
    "dtype": "float32",
    "settings": {},
}


@dataclass(frozen=True)
class Scene:
    """heatmaps [N, H, W] by row, truth [H, W] with 0, 1 to N and 255, and classes from 0."""

    heatmaps: dict
    truth: np.ndarray
    labels: tuple
    group: str = ""
    target: int | None = None


def scenes(count, rows, *, seed=0, groups=(), classless=()):
    """Later rows are a little nearer to the truth."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        amount = 0 if number in classless else int(rng.integers(2, 4))
        labels = tuple(sorted(rng.choice(len(CLASSES), amount, replace=False).tolist()))
        truth = rng.integers(0, amount + 1, SIZE).astype(np.int64)
        truth[0, :2] = 255
        near = truth[None] == np.arange(1, amount + 1)[:, None, None]
        noise = rng.random((amount, *SIZE))
        heatmaps = {
            row: (0.7 * noise + (0.2 + 0.04 * place) * near).astype(np.float32)
            for place, row in enumerate(rows)
        }
        group = groups[number % len(groups)] if groups else ""
        target = labels[number % amount] if groups else None
        found.append(Scene(heatmaps, truth, labels, group, target))
    return found


def image_row(index, scene):
    """What a run keeps of a scene."""
    labels = [label + 1 for label in scene.labels]
    truth = torch.from_numpy(scene.truth)
    tallies = {
        row: (
            tuple(tally(torch.from_numpy(maps)[None], truth, labels, index))
            if labels
            else (nothing_but_background(index, truth),)
        )
        for row, maps in scene.heatmaps.items()
    }
    area = tuple(float((scene.truth == n + 1).mean()) for n in range(len(labels)))
    key = f"image-{index:03d}"
    return ImageRow(index, key, scene.labels, area, scene.group, scene.target, tallies=tallies)


def nothing_but_background(index, truth):
    pixels = torch.tensor([int((truth != 255).sum())])
    steps = pixels[:, None].expand(1, len(THRESHOLDS))
    return Tally(torch.tensor([index]), torch.tensor([0]), pixels, steps, steps)


def build(folder, spec="lab-models", *, dataset=None, model="embedded", indices=range(12),
          total=None, limit=None, counts=None, made=None, split="test"):  # fmt: skip
    """A run of a shipped spec with the images of those numbers; ``made`` are its scenes."""
    loaded = load_spec(spec)
    # As on a model that the other methods cannot read.
    rows = [row for row in loaded.rows if METHODS[row.method].separable]
    dataset = dataset or loaded.datasets[0]
    indices = list(indices)
    header = {
        "spec": loaded.name,
        "digest": loaded.digest(),
        "label": loaded.label,
        "title": loaded.title,
        "columns": loaded.columns,
        "baseline": loaded.baseline,
        "notes": list(loaded.notes),
        "extends": loaded.extends,
        "dataset": dataset,
        "split": split,
        "limit": limit,
        "images": len(indices) if total is None else total,
        "masks": "SegmentationClass",
        "pictures": "0" * 64,
        "classes": list(CLASSES),
        "counts": counts,
        "seed": 3,
        "model": {**MODEL, "name": model},
        "rows": [
            {
                "name": row.name,
                "method": row.method,
                "baseline": row.baseline,
                "config": row.config.resolved("sd").to_dict(),
                "scores": row.scores,
                "exponents": row.exponents,
                "supervised": False,
            }
            for row in rows
        ],
        "missing": [row.name for row in loaded.rows if row not in rows],
        "device": "a CPU",
        "versions": {"python": "3.11", "torch": "2"},
        "git": "abc123",
    }
    run = Run.start(folder / f"{spec}--{dataset}--{model}", header)
    made = made or scenes(len(indices), [row.name for row in rows])
    rows = [image_row(index, scene) for index, scene in zip(indices, made, strict=True)]
    if rows:
        run.append(rows, seconds=2.0 * len(rows))
    return run
