"""Does a step that follows the picture's edges help, on photographs and on the lab's scenes?

python benchmarks/edges.py --photos PHOTOS --out docs/edges/photos.json --lab 48

PHOTOS holds images/*.jpg and masks/*.png (palette index: 0 background, 255 not counted). Each
class's true mask is averaged over a square grid of cells, as a model that resizes to a square gives
it, with Gaussian noise on the cells or none, and enlarged bilinearly, min-max. Settings are chosen
on the first half of the photographs, by name, and judged on the second, where each variant has the
threshold that was its best on the first half at the same cells and noise. IoU is the mean over
(photograph, class), mIoU is pooled over photographs with the background; differences to "none" are
paired, with 95 % intervals by bootstrap over photographs. The lab's heatmaps are uncalibrated
attention on val scenes, judged by pooled mIoU at each variant's best threshold.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

import pixalign as pa
from lab.measured import scene_attention, scene_groups
from pixalign.alignment.edges import EPSILON, RADIUS, SAMPLES, guided, window_mean
from pixalign.alignment.heatmaps import enlarge, heatmaps_under
from pixalign.backbones.load import hide_loading_bars
from pixalign.bench.metrics import (
    IGNORE,
    THRESHOLDS,
    Tally,
    bootstrap_weights,
    curve,
    figures,
    interval,
    pair_means,
    tally,
)
from pixalign.core.files import write_json
from pixalign.core.maps import minmax

CELLS = (16, 32, 64)  # along each side
NOISES = (0.0, 0.15)
MODELS = ("embedded", "lab:sd2", "lab:sdxl", "lab:sd3")
DRAWS = 2000

Step = Callable[[Tensor, Tensor, float], Tensor]  # heatmaps, picture, cell


def none(heatmaps: Tensor, picture: Tensor, cell: float) -> Tensor:
    """As they are."""
    return heatmaps


def blurred(heatmaps: Tensor, picture: Tensor, cell: float, share: float) -> Tensor:
    """The control that does not see the picture: two means over windows of ``share`` cells."""
    reach = max(1, round(share * cell))
    return window_mean(window_mean(heatmaps.double(), reach), reach).to(heatmaps)


def whole_guided(heatmaps: Tensor, picture: Tensor, cell: float, radius: float) -> Tensor:
    """The guided filter as He et al. have it: its blur of the heatmaps and what `guided` adds."""
    within = heatmaps / 4 + 0.375  # what is added is linear in them; here the clamp does not cut it
    added = 4 * (guided(within, picture, cell, radius=radius) - within)
    return (blurred(heatmaps, picture, cell, radius) + added).clamp(0, 1)


def neighbours(maps: Tensor, distances: Sequence[int]) -> Iterator[Tensor]:
    """maps [C, H, W] moved to the 8 neighbours at each distance; the border is repeated."""
    height, width = maps.shape[1:]
    for far in distances:
        wide = pad(maps[None], (far,) * 4, mode="replicate")[0]
        for y, x in np.ndindex(3, 3):
            if (y, x) != (1, 1):
                yield wide[:, y * far : y * far + height, x * far : x * far + width]


def pamr(
    heatmaps: Tensor, picture: Tensor, cell: float, rounds: int, distances: Sequence[int]
) -> Tensor:
    """PAMR (Araslanov and Roth, CVPR 2020): means over neighbours of similar colour, min-max."""
    near = torch.stack(list(neighbours(picture, distances)))
    contrast = (near - picture).abs() / (0.1 * near.std(0) + 1e-8)
    weights = (-contrast.mean(1)).softmax(0)
    for _ in range(rounds):
        moved = zip(weights, neighbours(heatmaps, distances), strict=True)
        heatmaps = torch.stack([weight * maps for weight, maps in moved]).sum(0)
    return minmax(heatmaps, (1, 2)).clamp(0, 1)


def bilateral(heatmaps: Tensor, picture: Tensor, cell: float, sigma: float, added: bool) -> Tensor:
    """Means over 9 x 9 places within 1.5 cells, by nearness and colour (Gaussian ``sigma``).

    ``added``: only what colour changes in that mean is added to the heatmaps, as in `guided`.
    """
    offsets = sorted({round(1.5 * cell * k / 4) for k in range(-4, 5)})
    far, (height, width) = offsets[-1], picture.shape[1:]
    both = pad(torch.cat([picture, heatmaps])[None], (far,) * 4, mode="replicate")[0]
    sums, plain = torch.zeros(2, len(heatmaps), height, width)
    total, count = torch.zeros(height, width), 0.0
    for y in offsets:
        for x in offsets:
            moved = both[:, far + y : far + y + height, far + x : far + x + width]
            near = float(np.exp(-(y * y + x * x) / (2 * cell * cell)))
            apart = (moved[:3] - picture).square().sum(0)
            weight = near * torch.exp(-apart / (2 * sigma * sigma))
            sums, total = sums + weight * moved[3:], total + weight
            plain, count = plain + near * moved[3:], count + near
    mean = sums / total
    return (heatmaps + mean - plain / count).clamp(0, 1) if added else mean


VARIANTS: dict[str, Step] = {
    "none": none,
    "guided": guided,
    "blur .15": partial(blurred, share=0.15),
    "whole guided filter .25": partial(whole_guided, radius=0.25),
    "whole guided filter 1": partial(whole_guided, radius=1.0),
    "pamr 10": partial(pamr, rounds=10, distances=(1, 2, 4, 8)),
    "pamr 2": partial(pamr, rounds=2, distances=(1, 2)),
}
# Tried on the first half only.
SETTINGS: dict[str, Step] = {
    "guided, radius .5": partial(guided, radius=0.5),
    "guided, radius .7": partial(guided, radius=0.7),
    "guided, radius 1.5": partial(guided, radius=1.5),
    "guided, epsilon 1e-4": partial(guided, epsilon=1e-4),
    "guided, epsilon 1e-2": partial(guided, epsilon=1e-2),
    "bilateral .1": partial(bilateral, sigma=0.1, added=False),
    "bilateral .1, added": partial(bilateral, sigma=0.1, added=True),
}


@dataclass(frozen=True, eq=False)
class Photo:
    """A picture [3, H, W] in [0, 1], its truth [H, W] as `tally` wants it, its classes' numbers."""

    picture: Tensor
    truth: Tensor
    labels: list[int]


def to_picture(image: Image.Image) -> Tensor:
    """float32 [3, H, W] in [0, 1]."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


def open_photo(folder: Path, name: str) -> Photo:
    """One photograph of the folder with its mask."""
    mask = np.array(Image.open(folder / "masks" / f"{name}.png"))
    labels = [int(label) for label in np.unique(mask) if label not in (0, IGNORE)]
    truth = np.where(mask == IGNORE, IGNORE, 0)
    for number, label in enumerate(labels, 1):
        truth[mask == label] = number
    picture = to_picture(Image.open(folder / "images" / f"{name}.jpg"))
    return Photo(picture, torch.from_numpy(truth), labels)


def coarse_heatmaps(photo: Photo, cells: int, noise: float, seed: int) -> Tensor:
    """[N, H, W] in [0, 1]: the true masks as a noisy model of cells x cells would give them."""
    masks = torch.stack([photo.truth == i for i in range(1, len(photo.labels) + 1)]).float()
    maps = adaptive_avg_pool2d(masks, (cells, cells))
    generator = torch.Generator().manual_seed(seed)
    maps = maps + noise * torch.randn(maps.shape, generator=generator)
    return enlarge(maps, tuple(photo.truth.shape))


def tallies_at(
    photos: dict[int, Photo], cells: int, noise: float, variants: dict[str, Step]
) -> dict[str, Tally]:
    """Every variant's pixels over the photographs, which are numbered from 0."""
    found: dict[str, list[Tally]] = {name: [] for name in variants}
    for index, (number, photo) in enumerate(photos.items()):
        heatmaps = coarse_heatmaps(photo, cells, noise, 1000 * number + cells)
        # The cells of a picture that is not square are not: their mean side.
        cell = photo.truth.numel() ** 0.5 / cells
        made = torch.stack([step(heatmaps, photo.picture, cell) for step in variants.values()])
        for name, one in zip(found, tally(made, photo.truth, photo.labels, index), strict=True):
            found[name].append(one)
    return {name: Tally.concatenate(rows) for name, rows in found.items()}


def best_threshold(rows: Tally) -> int:
    """Where in THRESHOLDS the mean IoU over (photograph, class) is highest."""
    return int(rows.select(rows.label > 0).ious().mean(0).argmax())


def compared(
    tallies: dict[str, Tally], places: dict[str, int], weights: Tensor
) -> dict[str, dict[str, Any]]:
    """Figures of every variant at its threshold, and what it gains over "none"."""
    ious, kept, mious, points = {}, {}, {}, {}
    for name, rows in tallies.items():
        classes = rows.select(rows.label > 0)
        ious[name] = 100 * classes.ious()[:, places[name]]
        kept[name] = 100 * classes.ious()[:, places["none"]].mean()  # at the threshold of "none"
        fixed = rows.at(THRESHOLDS[places[name]])
        points[name] = 100 * float(curve(fixed).miou[0, 0])
        mious[name] = 100 * curve(fixed, weights).miou[:, 0]
        image = classes.image
    found: dict[str, dict[str, Any]] = {}
    for name, rows in tallies.items():
        gain = ious[name] - ious["none"]
        low, high = interval(pair_means(gain, image, weights))
        miou_low, miou_high = interval(mious[name] - mious["none"])
        oracle = 100 * rows.select(rows.label > 0).ious().mean(0).max()
        found[name] = {
            "threshold": THRESHOLDS[places[name]],
            "iou": round(float(ious[name].mean()), 2),
            "iou_gain": [round(float(v), 2) for v in (gain.mean(), low, high)],
            "iou_gain_threshold_kept": round(float(kept[name] - kept["none"]), 2),
            "oracle_iou": round(float(oracle), 2),
            "miou": round(points[name], 2),
            "miou_gain": [
                round(float(v), 2) for v in (points[name] - points["none"], miou_low, miou_high)
            ],
        }
    return found


def on_photographs(folder: Path) -> dict[str, Any]:
    """Both halves, by "cells 16, noise 0.15" and variant."""
    names = sorted(path.stem for path in (folder / "images").glob("*.jpg"))
    photos = {number: open_photo(folder, name) for number, name in enumerate(names)}
    half = len(photos) // 2
    first = {number: photo for number, photo in photos.items() if number < half}
    second = {number: photo for number, photo in photos.items() if number >= half}
    result: dict[str, Any] = {"photographs": [len(first), len(second)], "chosen": {}, "judged": {}}
    for cells in CELLS:
        for noise in NOISES:
            condition = f"cells {cells}, noise {noise:g}"
            tallies = tallies_at(first, cells, noise, VARIANTS | SETTINGS)
            places = {name: best_threshold(rows) for name, rows in tallies.items()}
            drawn = bootstrap_weights(len(first), DRAWS)
            result["chosen"][condition] = compared(tallies, places, drawn)
            tallies = tallies_at(second, cells, noise, VARIANTS)
            drawn = bootstrap_weights(len(second), DRAWS)
            result["judged"][condition] = compared(tallies, places, drawn)
            print_condition(condition, result)
    return result


def on_the_lab(name: str, count: int) -> dict[str, Any]:
    """A lab model's val scenes: mIoU of every variant at its best threshold, and its gain."""
    model = pa.load(None if name == "embedded" else name, dtype="float32")
    config = model.resolve(pa.AlignConfig.uncalibrated())
    found: dict[str, list[Tally]] = {variant: [] for variant in VARIANTS}
    for group, latents in scene_groups(model, "val", count, show=False):
        maps = scene_attention(model, group, latents, config)
        for subject, one in zip(group, maps, strict=True):
            powers = torch.ones(1, len(subject.labels))
            heatmaps = heatmaps_under(one, config.cross_weights, powers, subject.size)[0]
            picture = to_picture(subject.sample.image)
            cell = subject.truth.numel() ** 0.5 / (one.grid[0] * one.grid[1]) ** 0.5
            made = torch.stack([step(heatmaps, picture, cell) for step in VARIANTS.values()])
            labels = [label + 1 for label in subject.labels]
            counted = tally(made, subject.truth, labels, subject.index)
            for variant, rows in zip(found, counted, strict=True):
                found[variant].append(rows)
    weights = bootstrap_weights(count, DRAWS)
    made_of = {v: figures(Tally.concatenate(rows), weights, None) for v, rows in found.items()}
    plain, drawn = made_of["none"]
    result: dict[str, Any] = {"scenes": count, "cells": list(one.grid), "variants": {}}
    for variant, (row, values) in made_of.items():
        gains = (row.miou - plain.miou, *interval(values - drawn))
        result["variants"][variant] = {
            "threshold": row.threshold,
            "miou": round(row.miou, 2),
            "miou_gain": [round(gain, 2) for gain in gains],
        }
    return result


def print_condition(condition: str, result: dict[str, Any]) -> None:
    """One line a variant, the first half and then the second."""
    print(
        f"{condition:<26} {'chosen half: IoU, gain':<32} judged half: IoU, gain; oracle; mIoU gain"
    )
    for name, row in result["chosen"][condition].items():
        line = f"  {name:<24} {row['iou']:5.1f} {ends(row['iou_gain']):<26}"
        if judged := result["judged"][condition].get(name):
            line += f" {judged['iou']:5.1f} {ends(judged['iou_gain']):<26}"
            line += f" {judged['oracle_iou']:5.1f}  {ends(judged['miou_gain'])}"
        print(line, flush=True)


def ends(values: Sequence[float]) -> str:
    """A value with its interval."""
    value, low, high = values
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lab", type=int, default=0, help="scenes a model")
    args = parser.parse_args(arguments)
    hide_loading_bars()
    result = on_photographs(args.photos)
    result |= {"radius": RADIUS, "epsilon": EPSILON, "samples": SAMPLES, "lab": {}}
    for name in MODELS if args.lab else ():
        result["lab"][name] = found = on_the_lab(name, args.lab)
        print(f"{name}, {found['scenes']} scenes, {found['cells'][0]} cells")
        for variant, row in found["variants"].items():
            print(f"  {variant:<24} {row['miou']:5.1f} {ends(row['miou_gain'])}", flush=True)
    if args.out:
        write_json(args.out, result)
    return result


if __name__ == "__main__":
    main()
