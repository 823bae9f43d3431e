"""The demo's pictures and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pixalign.alignment.result import Alignment
from pixalign.pictures.drawing import heat, palette, tinted
from pixalign.pictures.grid import picture_grid
from pixalign.pictures.pages import data_uri, environment
from pixalign.scenes.labelled import LabelledScene

BETTER, WORSE, SAME = "#0b62a4", "#b3400e", "#666666"  # told apart by arrows too
CELL, GAP, LINE, TEXT = 256, 12, 34, 364  # of summary.png, in pixels
MASKS = ("picture", "truth", "before calibration", "after calibration")


def draw(scene: LabelledScene, before: Alignment, after: Alignment) -> dict[str, Any]:
    """The pictures of a scene: itself, three masks, and lists of heatmaps, one of each class."""
    return {
        "picture": after.image,
        "truth": tinted(after.image, scene.truth.numpy()),
        "before": tinted(after.image, before.mask()),
        "after": tinted(after.image, after.mask()),
        "heat_before": [heat(heatmap) for heatmap in before.heatmaps],
        "heat_after": [heat(heatmap) for heatmap in after.heatmaps],
    }


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
    names = (f"{name}_before", f"{name}_after")
    means = {name: float(np.mean([row[name] for row in rows])) for name in names}
    return {"count": len(rows), **means}


def verdict(summary: Mapping[str, Any]) -> str:
    """What the numbers say, in words."""
    classes, scenes = summary["classes"], summary["all"]
    better, worse = classes["better"], classes["worse"]
    gain = f" (by {classes['mean_gain']:.1f} points in the mean)" if better else ""
    loss = f" (by {classes['mean_loss']:.1f} points in the mean)" if worse else ""
    return (
        f"Of {classes['count']} classes, calibration improved the IoU of {better}{gain}, worsened "
        f"that of {worse}{loss} and left {classes['count'] - better - worse} unchanged. Over all "
        f"classes the mean IoU went {_way(classes['iou_before'], classes['iou_after'])}; over all "
        f"scenes, with the background as one more class, it went "
        f"{_way(scenes['mean_iou_before'], scenes['mean_iou_after'])}."
    )


def _way(before: float, after: float) -> str:
    change = change_in_points(before, after)
    return f"from {100 * before:.1f}\u00a0% to {100 * after:.1f}\u00a0% ({change:+.1f} points)"


def page(record: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]) -> str:
    """report.html: a record as in demo.json and each scene's pictures, in one file."""
    templates = environment(html=True, change_in_points=change_in_points, uri=data_uri, zip=zip)
    source = resources.files("pixalign.scenes").joinpath("demo.html.j2").read_text("utf-8")
    most = max(len(scene["classes"]) for scene in record["scenes"])
    return templates.from_string(source).render(
        record=record,
        drawn=drawn,
        verdict=verdict(record["summary"]),
        colours=["#" + bytes(colour).hex() for colour in palette(most)[1:]],
        scale=heat(np.linspace(0, 1, 256)[None]),
        shades={"better": BETTER, "worse": WORSE},
    )


def summary_picture(
    scenes: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]]
) -> Image.Image:
    """The first scene of each rule as a row: picture, truth, both masks, each class's IoU."""
    rows: dict[str, list[Image.Image]] = {}
    for scene, images in zip(scenes, drawn, strict=True):
        if scene["rule"] not in rows:
            shown = (images[name] for name in ("picture", "truth", "before", "after"))
            large = [image.resize((CELL, CELL), Image.Resampling.NEAREST) for image in shown]
            rows[scene["rule"]] = [*large, _figures(scene)]
    headings = (*MASKS, "IoU in %, before and after")
    return picture_grid(list(rows.values()), headings=headings, gap=GAP, text=21)


def _figures(scene: Mapping[str, Any]) -> Image.Image:
    """A scene's rule, then a line for each class: colour, name, IoU before and after."""
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
        for right, name, fill in ((250, "iou_before", "black"), (330, "iou_after", shade)):
            pen.text((right, y), f"{100 * row[name]:.1f}", fill=fill, font=font, anchor="ra")
        if change:
            base, tip = (y + 21, y + 6) if change > 0 else (y + 6, y + 21)
            pen.polygon([(340, base), (356, base), (348, tip)], fill=shade)
        y += LINE
    return panel
