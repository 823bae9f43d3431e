"""All methods side by side on the same scenes: a small, a hidden, a rare and a crowded object.

python benchmarks/methods.py --out docs/methods.webp

One line for each scene: the picture with the outline of the object in question, then each
method's heatmap of it, with the object's IoU in the mask that all its classes make at 0.46.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import pixalign as pa
from pixalign.bench.datasets import Sample, open_dataset
from pixalign.methods import METHODS
from pixalign.pictures.drawing import heat, outline

SCENES = {"small": "size=1", "hidden": "occlusion=0.75", "rare": "rarity=1", "crowded": "copies=1"}
BASELINES = {
    "DAAM": ("daam", {}),
    "OVAM": ("ovam", {}),
    "OVAM, optimised": ("ovam-optimized", {"epochs": 100}),
    "DiffPNG": ("diffpng", {}),
    "DiffSegmenter": ("diffsegmenter", {}),
    "DiffSeg": ("diffseg", {"threshold": 0.03}),
}
THRESHOLD = 0.46  # the embedded model's own
CELL, HEAD, SIDE = 150, 20, 76


def heatmaps(model: pa.Model, sample: Sample, names: list[str]) -> dict[str, np.ndarray]:
    """Each method's heatmaps float32 [N, H, W]."""
    masks = np.stack([sample.truth == label + 1 for label in sample.present])
    found = {}
    for title, (name, options) in BASELINES.items():
        more = {"target_masks": masks} if METHODS[name].supervised else {}
        result = model.align(sample.image, names, method=name, options=options, **more)
        found[title] = result.heatmaps
    found["uncalibrated"] = model.align(sample.image, names, method="attention").heatmaps
    found["ELBO-T2IAlign"] = model.align(sample.image, names).heatmaps
    return found


def iou(maps: np.ndarray, place: int, truth: np.ndarray) -> float:
    """In percent, of the object's pixels [H, W] and those given to its class."""
    claimed = (maps.argmax(0) == place) & (maps.max(0) >= THRESHOLD)
    return 100 * float((claimed & truth).sum() / max((claimed | truth).sum(), 1))


def line(model: pa.Model, title: str, sample: Sample, classes: tuple[str, ...]) -> Image.Image:
    """One scene under all methods."""
    assert sample.target is not None
    names, place = [classes[label] for label in sample.present], sample.present.index(sample.target)
    truth = sample.truth == sample.target + 1
    pixels = np.asarray(sample.image).copy()
    pixels[outline(truth.astype(np.uint8))] = (255, 255, 255)
    cells = [(f"{names[place]} of {len(names)}", Image.fromarray(pixels))]
    for name, maps in heatmaps(model, sample, names).items():
        cells.append((f"{name} {iou(maps, place, truth):.0f}", heat(maps[place])))
    sheet = Image.new("RGB", (SIDE + len(cells) * (CELL + 4), CELL + HEAD), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    draw.text((2, HEAD + CELL // 2), title, fill="black", font=font, anchor="lm")
    for number, (text, image) in enumerate(cells):
        left = SIDE + number * (CELL + 4)
        draw.text((left, 3), text, fill="black", font=font)
        sheet.paste(image.resize((CELL, CELL), Image.Resampling.BILINEAR), (left, HEAD))
    return sheet


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("methods.webp"))
    parser.add_argument("--scene", type=int, default=1, help="which scene of each level")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    model = pa.load(device=args.device)
    dataset = open_dataset("lab-toy", None, limit=args.scene + 1)
    place = {key: index for index, key in enumerate(dataset.keys)}
    lines = [
        line(model, title, dataset[place[f"{group}-{args.scene:06d}"]], dataset.classes)
        for title, group in SCENES.items()
    ]
    sheet = Image.new("RGB", (lines[0].width, sum(one.height for one in lines)), "white")
    for number, one in enumerate(lines):
        sheet.paste(one, (0, number * one.height))
    sheet.save(args.out, quality=88)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
