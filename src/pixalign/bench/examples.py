"""Pictures of a run's best and worst images: truth, heatmaps and masks of two rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pixalign.align import Aligner
from pixalign.bench.measuring import Subject, ask_network, heatmaps_of
from pixalign.bench.points import Points
from pixalign.bench.spec import Spec
from pixalign.bench.store import ImageRow, Run
from pixalign.datasets import Dataset
from pixalign.export import write_bytes, write_png
from pixalign.metrics import threshold_index
from pixalign.viz import heat, tinted

FOLDER = "pictures"
_CELL = 200
_FONT = 14
_MOST_CLASSES = 6


def draw_examples(
    run: Run, result: Mapping[str, Any], spec: Spec, dataset: Dataset, aligner: Aligner
) -> None:
    """Align a few images again, the same as in the run, and write ``pictures/*.png``."""
    focus, base = result["focus"], spec.baseline
    names = [name for name in dict.fromkeys((base, focus)) if name in result["rows"]]
    rows = [row for row in spec.runnable_rows() if row.name in names]
    points = Points.of(rows, aligner.backbone.family, aligner.own)
    thresholds = {name: result["rows"][name]["oracle"]["threshold"] for name in names}
    place = {key: index for index, key in enumerate(dataset.keys)}
    images = {image.key: image for image in run.images()}
    records = []
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    for kind in ("best", "worst"):
        for number, key in enumerate(result[kind], 1):
            index = place[key]
            seed = int(run.header["seed"]) + index
            subject = Subject(dataset[index], index, dataset.classes, seed)
            ask_network(aligner, points, [subject])
            found = dict(heatmaps_of(aligner, subject, points))
            file = f"{kind}-{number}.png"
            write_png(folder / file, sheet(subject, found, thresholds))
            records.append(
                {
                    "file": file,
                    "key": key,
                    "kind": kind,
                    "miou": round(_own_miou(images[key], focus, thresholds[focus]), 2),
                    "classes": [phrase.name for phrase in subject.phrases],
                }
            )
    text = json.dumps(records, indent=1, ensure_ascii=False)
    write_bytes(folder / "pictures.json", (text + "\n").encode())


def _own_miou(image: ImageRow, row: str, threshold: float) -> float:
    """The mean IoU of an image's classes in percent, its background left out."""
    return 100 * float(image.tallies[row].ious()[1:, threshold_index(threshold)].mean())


def sheet(
    subject: Subject, heatmaps: Mapping[str, Tensor], thresholds: Mapping[str, float]
) -> Image.Image:
    """The picture above its truth; then for each row its heatmaps and its mask."""
    names = [phrase.name for phrase in subject.phrases][:_MOST_CLASSES]
    picture = subject.sample.image
    truth = subject.truth.numpy()
    shown = np.where(truth == 255, 0, truth)
    cells: list[list[tuple[str, Image.Image]]] = []
    for row, maps in heatmaps.items():
        values = maps.cpu().numpy()
        best = values.argmax(0) + 1
        mask = np.where(values.max(0) >= thresholds[row], best, 0)
        line = [(f"{row}: {name}", heat(one)) for name, one in zip(names, values, strict=False)]
        cells.append([*line, (f"{row}: mask", tinted(picture, mask))])
    return _grid([("picture", picture), ("truth", tinted(picture, shown))], cells)


def _grid(
    first: Sequence[tuple[str, Image.Image]], lines: Sequence[Sequence[tuple[str, Image.Image]]]
) -> Image.Image:
    """A first column, and lines beside it."""
    height = _CELL + _FONT + 8
    wide = 1 + max(len(line) for line in lines)
    canvas = Image.new("RGB", (wide * (_CELL + 6), max(len(first), len(lines)) * height), "white")
    for number, cell in enumerate(first):
        _paste(canvas, cell, 0, number * height)
    for number, line in enumerate(lines):
        for place, cell in enumerate(line, 1):
            _paste(canvas, cell, place * (_CELL + 6), number * height)
    return canvas


def _paste(canvas: Image.Image, cell: tuple[str, Image.Image], left: int, top: int) -> None:
    text, image = cell
    scale = _CELL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    font = ImageFont.load_default(_FONT)
    while font.getlength(text) > _CELL:
        text = text[:-2].rstrip(" .…") + "…"
    ImageDraw.Draw(canvas).text((left + 2, top + 2), text, fill="black", font=font)
    canvas.paste(image.resize(size, Image.Resampling.BILINEAR), (left, top + _FONT + 6))
