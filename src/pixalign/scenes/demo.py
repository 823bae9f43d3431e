"""A few test scenes, chosen by rule: attention's masks, the paper's and ours, beside the truth."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pixalign.alignment.result import Alignment
from pixalign.config import AlignConfig
from pixalign.core.files import check_folder, make_folder, write_json, write_text
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.pictures.drawing import heat, hex_palette, palette, tinted
from pixalign.pictures.grid import picture_grid
from pixalign.pictures.pages import data_uri, environment
from pixalign.pictures.saving import write_png
from pixalign.scenes.atlas import training_ranks, training_shares
from pixalign.scenes.labelled import LabelledScene, labelled_scenes
from pixalign.scenes.sample import sample_scenes

SCENES = 8
SIZE = 128  # pixels on a side
FEWEST, MOST = 2, 4  # visible classes of a scene
START = 1000  # the search starts at test scene START times the seed
SMALL = (0.003, 0.025)  # bounds of the share of the picture
HIDDEN = (0.08, 0.5)  # bounds of the share that is visible
_BATCH = 64
BETTER, WORSE, SAME = "#0b62a4", "#b3400e", "#666666"  # told apart by arrows too
CELL, GAP, LINE, TEXT = 256, 12, 34, 460  # of summary.png, in pixels
MASKS = {"before": "attention", "paper": "the paper", "after": "ours"}

RULES = {
    "rare": "a class of the rarest tenth of the training classes",
    "small": f"a class that covers between {100 * SMALL[0]:g} and {100 * SMALL[1]:g} % of the "
    "picture",
    "hidden": f"a class of which between {100 * HIDDEN[0]:g} and {100 * HIDDEN[1]:g} % is visible",
    "crowded": f"{MOST} different classes",
}


def found_by(rule: str, scene: LabelledScene) -> np.ndarray:
    """bool [N]: which of a scene's classes make it one of the rule."""
    ranks, area, visible = training_ranks(), np.array(scene.area), np.array(scene.visible)
    chosen: dict[str, np.ndarray] = {
        "rare": ranks[list(scene.labels)] >= len(ranks) - len(ranks) // 10,
        "small": (SMALL[0] < area) & (area < SMALL[1]),
        "hidden": (HIDDEN[0] < visible) & (visible < HIDDEN[1]),
        "crowded": np.full(len(area), len(area) == MOST),
    }
    return chosen[rule]


def demo(
    model: AlignmentModel,
    out: str | os.PathLike[str],
    *,
    scenes: int = SCENES,
    seed: int = 0,
    config: AlignConfig | None = None,
    progress: bool = True,
    command: str | None = None,
) -> Path:
    """Write report.html, summary.png and demo.json into a folder; the path of report.html.

    The scenes are aligned by "attention" ("before"), as the paper writes, and by what ``config``
    says (None: the model's default; "after"). ``seed`` is the noise's, and says where the search
    for scenes starts. ``command`` is what made the call, for the report.
    """
    if scenes < 1:
        raise ValueError(f"scenes is {scenes}; allowed: 1 or more")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; allowed: a whole number from 0 to 2**32 - 1")
    check_folder(out)
    ours = config or AlignConfig()
    steps = {"elbo_steps": ours.elbo_steps, "collect_steps": ours.collect_steps}
    configs = {
        "before": AlignConfig.uncalibrated(**steps),
        "paper": AlignConfig.paper(**steps),
        "after": ours,
    }
    rows, drawn = [], []
    with Progress(len(configs) * scenes, "demo", progress, "alignment") as bar:
        for rule, scene in choose(scenes, START * seed):
            encoded, results = model.encode(scene.image), {}
            for name, own in configs.items():
                results[name] = model.align(encoded, scene.names, config=own, seed=seed)
                bar.advance(1)
            rows.append(describe(rule, scene, results))
            drawn.append(draw(scene, results))
    after = results["after"]
    settings = f"scenes={scenes}, seed={seed}" + (", config=config" if config else "")
    record: dict[str, Any] = {
        "command": command or f"pixalign.scenes.demo.demo(model, {os.fspath(out)!r}, {settings})",
        "model": after.provenance["model"],
        "versions": versions(),
        "seed": seed,
        "start": START * seed,
        "threshold": {name: result.config.threshold for name, result in results.items()},
        "rules": RULES,
        "summary": summarise_demo(rows),
        "scenes": rows,
    }
    folder = make_folder(out)
    write_json(folder / "demo.json", record)
    write_png(folder / "summary.png", summary_picture(rows, drawn))
    return write_text(folder / "report.html", page(record, drawn))


def choose(count: int, start: int = 0) -> list[tuple[str, LabelledScene]]:
    """(rule, scene) of ``count`` test scenes, evenly over the rules, in the rules' order.

    Each rule takes the first scenes from ``start`` on that it finds and no earlier rule took.
    """
    wanted = {name: len(range(place, count, len(RULES))) for place, name in enumerate(RULES)}
    taken: list[tuple[str, LabelledScene]] = []
    for scene in _test_scenes(start):
        for name in RULES:
            if wanted[name] and found_by(name, scene).any():
                wanted[name] -= 1
                taken.append((name, scene))
                break
        if not any(wanted.values()):
            break
    return sorted(taken, key=lambda pair: list(RULES).index(pair[0]))


def _test_scenes(start: int) -> Iterator[LabelledScene]:
    """The scenes from ``start`` on that have 2 to 4 visible classes."""
    for first in itertools.count(start, _BATCH):
        batch = sample_scenes("test", first, _BATCH)
        for scene in labelled_scenes(batch, SIZE, first, class_order=True):
            if FEWEST <= len(scene.labels) <= MOST:
                yield scene


def iou(truth: np.ndarray, labels_made: np.ndarray, labels: int) -> np.ndarray:
    """float64 [labels]: intersection over union of each label 0 .. labels - 1 of two masks [H, W].

    NaN where neither mask has the label.
    """
    pairs = truth.astype(np.int64) * labels + labels_made
    table = np.bincount(pairs.ravel(), minlength=labels**2).reshape(labels, labels)
    hits = table.diagonal()
    union = table.sum(0) + table.sum(1) - hits
    return np.where(union > 0, hits / np.maximum(union, 1), np.nan)


def describe(rule: str, scene: LabelledScene, results: Mapping[str, Alignment]) -> dict[str, Any]:
    """What is known and was measured of a scene, as JSON-able values; IoU in [0, 1]."""
    labels, truth, paper = len(scene.labels) + 1, scene.truth.numpy(), results["paper"]
    ious = {f"iou_{name}": iou(truth, result.mask(), labels) for name, result in results.items()}
    trust = results["after"].trust or [None] * len(scene.labels)
    columns: dict[str, Sequence[float] | np.ndarray] = {
        "training_share": training_shares()[list(scene.labels)],
        "area_share": scene.area,
        "visible_share": scene.visible,
        "elbo": paper.elbo,
        "score": paper.scores,
        **{name: values[1:] for name, values in ious.items()},
    }
    by_rule = found_by(rule, scene).tolist()
    return {
        "rule": rule,
        "scene": scene.number,
        "classes": [
            {"name": name, "by_rule": by_rule[index], "trust": str(trust[index] or "")}
            | {key: _number(column[index]) for key, column in columns.items()}
            for index, name in enumerate(scene.names)
        ],
        "background": {name: _number(values[0]) for name, values in ious.items()},
        **{f"mean_{name}": float(np.nanmean(values)) for name, values in ious.items()},
        "warnings": list(results["after"].warnings),
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def change_in_points(before: float, after: float) -> float:
    """The change from one IoU to another in percentage points, between the figures as printed."""
    return round(round(100 * after, 1) - round(100 * before, 1), 1)


def summarise_demo(scenes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the scenes of each rule, over all, and over all classes; how many changed.

    ``scenes`` are rows as in demo.json; gains and losses are percentage points.
    """
    classes = [row for scene in scenes for row in scene["classes"]]
    changes = [change_in_points(row["iou_before"], row["iou_after"]) for row in classes]
    gains = [change for change in changes if change > 0]
    losses = [-change for change in changes if change < 0]
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for scene in scenes:
        by_rule.setdefault(scene["rule"], []).append(scene)
    return {
        "by_rule": {rule: _means(group, "mean_iou") for rule, group in by_rule.items()},
        "all": _means(scenes, "mean_iou"),
        "classes": {
            **_means(classes, "iou"),
            "better": len(gains),
            "worse": len(losses),
            "mean_gain": sum(gains) / max(len(gains), 1),
            "mean_loss": sum(losses) / max(len(losses), 1),
        },
    }


def _means(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    names = tuple(f"{name}_{kind}" for kind in MASKS)
    means = {name: float(np.mean([row[name] for row in rows])) for name in names}
    return {"count": len(rows), **means}


# ---- pictures and page ----


def draw(scene: LabelledScene, results: Mapping[str, Alignment]) -> dict[str, Any]:
    """The pictures of a scene: itself, four masks, and lists of heatmaps, one of each class."""
    picture = scene.image
    return {
        "picture": picture,
        "truth": tinted(picture, scene.truth.numpy()),
        **{name: tinted(picture, result.mask()) for name, result in results.items()},
        **{f"heat_{name}": list(map(heat, result.heatmaps)) for name, result in results.items()},
    }


def page(record: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]) -> str:
    """report.html: a record as in demo.json and each scene's pictures, in one file."""
    templates = environment(html=True, change_in_points=change_in_points, uri=data_uri, zip=zip)
    source = resources.files("pixalign.scenes").joinpath("demo.html.j2").read_text("utf-8")
    most = max(len(scene["classes"]) for scene in record["scenes"])
    return templates.from_string(source).render(
        record=record,
        drawn=drawn,
        colours=hex_palette(most),
        scale=heat(np.linspace(0, 1, 256)[None]),
        shades={"better": BETTER, "worse": WORSE},
        kinds=MASKS,
    )


def summary_picture(
    scenes: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]]
) -> Image.Image:
    """The first scene of each rule as a row: picture, truth, three masks, each class's IoU."""
    rows: dict[str, list[Image.Image]] = {}
    for scene, images in zip(scenes, drawn, strict=True):
        if scene["rule"] not in rows:
            shown = (images[name] for name in ("picture", "truth", *MASKS))
            large = [image.resize((CELL, CELL), Image.Resampling.NEAREST) for image in shown]
            rows[scene["rule"]] = [*large, _figures(scene)]
    headings = ("picture", "truth", *MASKS.values(), "IoU in %: attention, the paper, ours")
    return picture_grid(list(rows.values()), headings=headings, gap=GAP, text=21)


def _figures(scene: Mapping[str, Any]) -> Image.Image:
    """A scene's rule, then a line for each class: colour, name, the three IoU."""
    panel = Image.new("RGB", (TEXT, CELL), "white")
    pen = ImageDraw.Draw(panel)
    font, small = ImageFont.load_default(23), ImageFont.load_default(18)
    pen.text((0, 0), scene["rule"].capitalize(), fill="black", font=ImageFont.load_default(27))
    pen.text((0, LINE), f"test scene {scene['scene']}", fill=SAME, font=small)
    y = 2 * LINE + GAP
    colours = [*palette(len(scene["classes"]))[1:].tolist(), [150, 150, 150]]
    rows = [*scene["classes"], {"name": "background", **scene["background"]}]
    for row, colour in zip(rows, colours, strict=True):
        change = change_in_points(row["iou_before"], row["iou_after"])
        shade = BETTER if change > 0 else WORSE if change < 0 else SAME
        pen.rectangle((0, y + 4, 18, y + 22), fill=tuple(colour))
        pen.text((28, y), row["name"], fill="black", font=font)
        columns = ((260, "before", "black"), (340, "paper", "black"), (420, "after", shade))
        for right, name, fill in columns:
            said = f"{100 * row[f'iou_{name}']:.1f}"
            pen.text((right, y), said, fill=fill, font=font, anchor="ra")
        if change:
            base, tip = (y + 21, y + 6) if change > 0 else (y + 6, y + 21)
            pen.polygon([(430, base), (446, base), (438, tip)], fill=shade)
        y += LINE
    return panel
