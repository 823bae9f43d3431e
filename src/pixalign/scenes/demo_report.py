"""The demo's pictures and page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pixalign.alignment.result import Alignment
from pixalign.pictures import drawing as viz

BETTER, WORSE, SAME = "#0b62a4", "#b3400e", "#666666"  # told apart by arrows too
CELL, GAP, LINE, TEXT = 256, 12, 34, 364  # of summary.png, in pixels
COLUMNS = ("picture", "truth", "before calibration", "after calibration")


@dataclass(frozen=True, eq=False)
class Drawn:
    """The pictures of one scene with N classes, each as large as the scene."""

    picture: Image.Image
    truth: Image.Image
    before: Image.Image
    after: Image.Image
    heat_before: tuple[Image.Image, ...]
    heat_after: tuple[Image.Image, ...]


def draw(truth: np.ndarray, before: Alignment, after: Alignment) -> Drawn:
    """The pictures of a scene with the true mask [H, W], without and with calibration."""
    return Drawn(
        picture=after.image,
        truth=viz.tinted(after.image, truth),
        before=viz.tinted(after.image, before.mask()),
        after=viz.tinted(after.image, after.mask()),
        heat_before=tuple(viz.heat(heatmap) for heatmap in before.heatmaps),
        heat_after=tuple(viz.heat(heatmap) for heatmap in after.heatmaps),
    )


def points(before: float, after: float) -> float:
    """The change from one IoU to another in percentage points, between the figures as printed."""
    return round(round(100 * after, 1) - round(100 * before, 1), 1)


def summarise(scenes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the scenes of each rule, over all, and over all classes; how many changed.

    ``scenes`` are rows as in demo.json; gains and losses are percentage points.
    """
    classes = [row for scene in scenes for row in scene["classes"]]
    changes = [points(row["iou_before"], row["iou_after"]) for row in classes]
    gains = [change for change in changes if change > 0]
    losses = [-change for change in changes if change < 0]
    by_rule = {
        rule: _means([scene for scene in scenes if scene["rule"] == rule], "mean_iou")
        for rule in dict.fromkeys(scene["rule"] for scene in scenes)
    }
    return {
        "by_rule": by_rule,
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
    means = {
        key: float(np.mean([r[key] for r in rows])) for key in (f"{name}_before", f"{name}_after")
    }
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
    change = points(before, after)
    return f"from {100 * before:.1f}\u00a0% to {100 * after:.1f}\u00a0% ({change:+.1f} points)"


# ---- page ----


def page(record: Mapping[str, Any], drawn: Sequence[Drawn]) -> str:
    """report.html: a record as in demo.json and each scene's pictures, in one file."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals.update(points=points, uri=data_uri, zip=zip)
    source = resources.files("pixalign.scenes").joinpath("demo.html.j2").read_text("utf-8")
    most = max(len(scene["classes"]) for scene in record["scenes"])
    return environment.from_string(source).render(
        record=record,
        drawn=drawn,
        verdict=verdict(record["summary"]),
        colours=["#" + bytes(colour).hex() for colour in viz.palette(most)[1:]],
        scale=viz.heat(np.linspace(0, 1, 256)[None]),
        shades={"better": BETTER, "worse": WORSE},
    )


def data_uri(image: Image.Image) -> str:
    """A picture as the text of an address that holds it whole."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


# ---- summary.png ----


def summary_picture(scenes: Sequence[Mapping[str, Any]], drawn: Sequence[Drawn]) -> Image.Image:
    """The first scene of each rule as a row: picture, truth, both masks, each class's IoU."""
    firsts = {scene["rule"]: index for index, scene in reversed(list(enumerate(scenes)))}
    rows = sorted(firsts.values())
    width = 4 * (CELL + GAP) + TEXT + 2 * GAP
    sheet = Image.new("RGB", (width, LINE + 2 * GAP + len(rows) * (CELL + GAP)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(21)
    for column, title in enumerate((*COLUMNS, "IoU in %, before and after")):
        place = (GAP + column * (CELL + GAP) + GAP * (column == 4), GAP)
        pen.text(place, title, fill="black", font=font)
    for row, index in enumerate(rows):
        top = LINE + GAP + row * (CELL + GAP)
        one = drawn[index]
        for column, image in enumerate((one.picture, one.truth, one.before, one.after)):
            enlarged = image.resize((CELL, CELL), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (GAP + column * (CELL + GAP), top))
        _figures(pen, scenes[index], (2 * GAP + 4 * (CELL + GAP), top))
    return sheet


def _figures(pen: ImageDraw.ImageDraw, scene: Mapping[str, Any], corner: tuple[int, int]) -> None:
    """A scene's rule, then a line for each class: colour, name, IoU before and after."""
    x, y = corner
    font, small = ImageFont.load_default(23), ImageFont.load_default(18)
    pen.text((x, y), scene["rule"].capitalize(), fill="black", font=ImageFont.load_default(27))
    pen.text((x, y + LINE), f"test scene {scene['scene']}", fill=SAME, font=small)
    y += 2 * LINE + GAP
    colours = [*viz.palette(len(scene["classes"]))[1:].tolist(), [150, 150, 150]]
    rows = [*scene["classes"], {"name": "background", **scene["background"]}]
    for row, colour in zip(rows, colours, strict=True):
        change = points(row["iou_before"], row["iou_after"])
        shade = BETTER if change > 0 else WORSE if change < 0 else SAME
        pen.rectangle((x, y + 4, x + 18, y + 22), fill=tuple(colour))
        pen.text((x + 28, y), row["name"], fill="black", font=font)
        pen.text(
            (x + 250, y), f"{100 * row['iou_before']:.1f}", fill="black", font=font, anchor="ra"
        )
        pen.text((x + 330, y), f"{100 * row['iou_after']:.1f}", fill=shade, font=font, anchor="ra")
        if change:
            base, tip = (y + 21, y + 6) if change > 0 else (y + 6, y + 21)
            pen.polygon([(x + 340, base), (x + 356, base), (x + 348, tip)], fill=shade)
        y += LINE
