"""Pictures of a run's best and worst images: truth, heatmaps and masks of two rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pixalign.bench.datasets import Dataset
from pixalign.bench.measuring import Bench
from pixalign.bench.spec import Spec
from pixalign.bench.store import Run
from pixalign.bench.subject import Subject
from pixalign.core.files import write_text
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
    rows = {name: result["rows"].get(name) for name in (spec.baseline, result["focus"])}
    thresholds = {name: row["oracle"]["threshold"] for name, row in rows.items() if row}
    shown = [
        {"file": f"{kind}-{number}.png", "key": key, "kind": kind, "miou": result["ious"][key]}
        for kind in ("best", "worst")
        for number, key in enumerate(result[kind], 1)
    ]
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged list is written anew
        listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
        known = [{key: record[key] for key in record if key != "classes"} for record in listed]
        if known == shown and all((folder / record["file"]).is_file() for record in shown):
            return
    bench = Bench([row for row in spec.rows if row.name in thresholds], model)
    indices = {key: index for index, key in enumerate(dataset.keys)}
    records = []
    for record in shown:
        index = indices[record["key"]]
        subject = Subject(dataset[index], index, dataset.classes, int(run.header["seed"]))
        made = {row.name: maps[0] for _, row, maps in bench.heatmaps([subject])}
        write_png(folder / record["file"], sheet(subject, made, thresholds))
        records.append({**record, "classes": [phrase.name for phrase in subject.phrases]})
    write_text(folder / LIST, json.dumps(records, indent=1, ensure_ascii=False) + "\n")


def sheet(
    subject: Subject, heatmaps: Mapping[str, Tensor], thresholds: Mapping[str, float]
) -> Image.Image:
    """The picture above its truth; then for each row of ``thresholds`` its heatmaps and mask."""
    names = [phrase.name for phrase in subject.phrases][:_MOST_CLASSES]
    picture, truth = subject.sample.image, subject.truth.numpy()
    lines: list[list[Cell]] = []
    for row, threshold in thresholds.items():
        values = heatmaps[row].cpu().numpy()
        mask = np.where(values.max(0) >= threshold, values.argmax(0) + 1, 0)
        line = [
            (heat(heatmap), f"{row}: {name}") for name, heatmap in zip(names, values, strict=False)
        ]
        lines.append([*line, (tinted(picture, mask), f"{row}: mask")])
    shown = tinted(picture, np.where(truth == 255, 0, truth))
    first = [(picture, "picture"), (shown, "truth")]
    rows = [[cell, *line] for cell, line in zip_longest(first, lines, fillvalue=())]
    return picture_grid(rows, side=_CELL, text=14, resample=Image.Resampling.BILINEAR)
