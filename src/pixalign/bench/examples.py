"""Pictures of a run's best and worst images: truth, heatmaps and masks of two rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pixalign.bench.clock import Clock
from pixalign.bench.datasets import Dataset
from pixalign.bench.measuring import Bench, Subject, heatmaps_of
from pixalign.bench.spec import Spec
from pixalign.bench.store import Run
from pixalign.core.files import write_bytes
from pixalign.core.protocols import AlignmentModel
from pixalign.pictures.drawing import heat, tinted
from pixalign.pictures.grid import Cell, picture_grid
from pixalign.pictures.saving import write_png

FOLDER, LIST = "pictures", "pictures.json"
_CELL = 200
_MOST_CLASSES = 6


def draw_examples(
    run: Run, result: Mapping[str, Any], spec: Spec, dataset: Dataset, model: AlignmentModel
) -> None:
    """Align a few images again, the same as in the run, and write ``pictures/*.png``.

    Where ``pictures.json`` lists the same images with the same IoU, nothing is done.
    """
    names = [n for n in dict.fromkeys((spec.baseline, result["focus"])) if n in result["rows"]]
    thresholds = {name: result["rows"][name]["oracle"]["threshold"] for name in names}
    shown = [
        {"file": f"{kind}-{number}.png", "key": key, "kind": kind, "miou": result["ious"][key]}
        for kind in ("best", "worst")
        for number, key in enumerate(result[kind], 1)
    ]
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    if _listed(folder) == shown:
        return
    bench = Bench.of([row for row in spec.rows if row.name in names], model)
    clock = Clock(model.backbone.device)
    indices = {key: index for index, key in enumerate(dataset.keys)}
    records = []
    for record in shown:
        index = indices[record["key"]]
        subject = Subject(dataset[index], index, dataset.classes, int(run.header["seed"]))
        made = {row.row.name: maps[0] for _, row, maps in heatmaps_of(bench, [subject], clock)}
        ordered = {name: made[name] for name in names}
        write_png(folder / record["file"], sheet(subject, ordered, thresholds))
        records.append({**record, "classes": [phrase.name for phrase in subject.phrases]})
    text = json.dumps(records, indent=1, ensure_ascii=False)
    write_bytes(folder / LIST, (text + "\n").encode())


def _listed(folder: Path) -> list[dict[str, Any]]:
    """What the list says of the pictures that are there, but for their classes."""
    path = folder / LIST
    try:
        records = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        there = [record for record in records if (folder / record["file"]).is_file()]
    except (ValueError, KeyError, TypeError):  # a damaged one is written anew
        return []
    return [{key: record[key] for key in record if key != "classes"} for record in there]


def sheet(
    subject: Subject, heatmaps: Mapping[str, Tensor], thresholds: Mapping[str, float]
) -> Image.Image:
    """The picture above its truth; then for each row its heatmaps and its mask."""
    names = [phrase.name for phrase in subject.phrases][:_MOST_CLASSES]
    picture = subject.sample.image
    truth = subject.truth.numpy()
    shown = np.where(truth == 255, 0, truth)
    lines: list[list[Cell]] = []
    for row, maps in heatmaps.items():
        values = maps.cpu().numpy()
        best = values.argmax(0) + 1
        mask = np.where(values.max(0) >= thresholds[row], best, 0)
        line = [(heat(one), f"{row}: {name}") for name, one in zip(names, values, strict=False)]
        lines.append([*line, (tinted(picture, mask), f"{row}: mask")])
    first = [(picture, "picture"), (tinted(picture, shown), "truth")]
    rows = [[cell, *line] for cell, line in zip_longest(first, lines, fillvalue=())]
    return picture_grid(rows, side=_CELL, text=14, resample=Image.Resampling.BILINEAR)
