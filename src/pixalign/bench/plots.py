"""Plots of results, as PNG (needs the extra ``bench``: matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from pixalign.bench.metrics import THRESHOLDS
from pixalign.bench.tables import Point, Result, point

LINE_COLOURS = (
    "#777777", "#0b6e4f", "#c8553d", "#3366aa", "#b8860b", "#7b4fa3", "#2a9d9d", "#a0496b",
)  # fmt: skip
_COLOURS = 128  # of a PNG: lines, bands and the edges of letters need no more
# Title, what is shown and the axis, by the field in which rows differ.
_SWEEPS = {
    "gamma": (
        "By strength", "mIoU over the strength of calibration", "1/γ (1: nothing is calibrated)"
    ),
    "elbo_steps": (
        "By ELBO steps", "mIoU over the number of ELBO steps", "timesteps of the ELBO"
    ),
}  # fmt: skip
# Title, what is shown and the axes' labels, by the kind of group.
_COMPARED = {
    "area": (
        "By area", "IoU by the class's share of the picture", "IoU of a pair, %",
        "the class's share of the picture, %: tenths of all (image, class) pairs",
    ),
    "frequency": ("By frequency", "mIoU by how often training showed the class", "mIoU, %", ""),
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A PNG and what it shows, in words."""

    title: str
    alt: str
    png: bytes


def plots(result: Result) -> list[Plot]:
    """Those that the result has something for."""
    if not result["rows"]:
        return []
    made = [
        *(_sweep(result, field) for field in _SWEEPS),
        _curves(result),
        effects(result) if len(result["rows"]) > len(LINE_COLOURS) else None,
        *(_compared(result, kind) for kind in _COMPARED),
        dials(result),
    ]
    return [plot for plot in made if plot is not None]


def effects(result: Result, names: Mapping[str, str] | None = None) -> Plot:
    """Rows as differences to their baselines; ``names`` chooses them, and says what to call them.

    A row that reads the true masks is marked.
    """
    rows = result["rows"]
    shown = names or {name: name for name, row in rows.items() if row["effect"]["oracle"]}
    figure, axes = new_figure(size=(7.5, 1 + 0.28 * len(shown)))
    for height, name in enumerate(shown):
        value, low, high = rows[name]["effect"]["oracle"]
        colour = LINE_COLOURS[2] if rows[name]["supervised"] else LINE_COLOURS[1]
        axes.plot([low, high], [height, height], color=colour, lw=2)
        axes.plot(value, height, "o", color=colour, ms=6)
    marked = [f"{x} (supervised)" if rows[n]["supervised"] else x for n, x in shown.items()]
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(shown)), marked)
    axes.invert_yaxis()
    axes.set_xlabel("mIoU minus the baseline, points (95 % interval over images)")
    alt = "Each row's mIoU minus its baseline's"
    return finished(figure, "Effects", alt, grid="x", legends=0)


def dials(result: Result) -> Plot | None:
    """The changed class's IoU as each dial is turned; "base=0" is level 0 of all."""
    levels = next(iter(result["rows"].values()))["groups"] or {}
    turns = [(group, *group.split("=")) for group in levels]
    parsed = [(dial, float(level), group) for group, dial, level in turns]
    dials = list(dict.fromkeys(dial for dial, level, _ in parsed if level > 0))
    if not dials:
        return None
    wide, tall = min(len(dials), 2), (len(dials) + 1) // 2
    size = (3.2 * wide, 2.6 * tall)
    figure, grid = new_figure(tall, wide, size=size, sharey=True, squeeze=False)
    for spare in grid.flat[len(dials) :]:
        spare.remove()
    for axes, dial in zip(grid.flat, dials, strict=False):
        turned = [(x, group) for own, x, group in parsed if own == dial or x == 0]
        for (name, row), colour in zip(result["rows"].items(), _colours(result), strict=True):
            draw_line(axes, {x: point(row["groups"][group]) for x, group in turned}, name, colour)
        axes.set_title(dial, fontsize=10)
    for axes in grid[:, 0]:
        axes.set_ylabel("IoU, %")
    return finished(figure, "By dial", "IoU of the changed class as each dial is turned")


def _curves(result: Result) -> Plot:
    """mIoU over the threshold, a line for each row."""
    figure, axes = new_figure()
    for (name, row), colour in zip(result["rows"].items(), _colours(result), strict=True):
        values = [float("nan") if value is None else value for value in row["curve"]]
        axes.plot(THRESHOLDS, values, color=colour, label=name, lw=1.6)
        best, fixed = row["oracle"], row["fixed"]
        axes.plot(best["threshold"], best["miou"], "o", color=colour, ms=5)
        axes.plot(fixed["threshold"], fixed["miou"], "s", mfc="white", color=colour, ms=5)
    label = "threshold (● the best, □ the one fixed in advance)"
    axes.set(xlim=(0, 1), xlabel=label, ylabel="mIoU, %")
    return finished(figure, "By threshold", "mIoU of each row at every threshold")


def _colours(result: Result) -> list[Any]:
    """The baseline grey, the others in order; shades of one colour where rows are many."""
    names = list(result["rows"])
    if len(names) > len(LINE_COLOURS) or any(_varying(result, field) for field in _SWEEPS):
        import matplotlib

        shades = matplotlib.colormaps["viridis"]
        return [shades(0.9 * place / max(len(names) - 1, 1)) for place in range(len(names))]
    others = iter(LINE_COLOURS[1:])
    return [LINE_COLOURS[0] if name == result["baseline"] else next(others) for name in names]


def _varying(result: Result, field: str) -> dict[str, float] | None:
    """A field's value by row, where rows differ in it and in nothing else."""
    rows = result["rows"]
    values = {name: row["config"][field] for name, row in rows.items()}
    rest = [
        (row["method"], row["scores"], row["exponents"], {**row["config"], field: None})
        for row in rows.values()
    ]
    alone = len(set(values.values())) == len(rows) > 1 and all(row == rest[0] for row in rest)
    return values if alone else None


def _sweep(result: Result, field: str) -> Plot | None:
    """mIoU over gamma or the ELBO's steps, where rows differ in that alone, at both thresholds."""
    values = _varying(result, field)
    if values is None:
        return None
    title, alt, label = _SWEEPS[field]
    places = {1 / x if field == "gamma" else x: result["rows"][name] for name, x in values.items()}
    figure, axes = new_figure()
    for kind, words, colour in (("oracle", "best", 1), ("fixed", "fixed", 3)):
        points = {x: point(places[x][kind]) for x in sorted(places)}
        draw_line(axes, points, f"{words} threshold", LINE_COLOURS[colour])
    axes.set_xticks(list(points), [f"{x:g}" for x in points])
    axes.set(xlabel=label, ylabel="mIoU, %")
    return finished(figure, title, alt)


def _compared(result: Result, kind: str) -> Plot | None:
    """Area or frequency: the row to look at beside its baseline.

    If it is the baseline itself, beside the last row.
    """
    rows, focus = result["rows"], result["focus"]
    baseline = rows[focus]["baseline"]
    others = [focus] if baseline != focus else [name for name in rows if name != focus][-1:]
    shown = {name: entries(rows[name], kind) for name in (baseline, *others) if name in rows}
    known = next(iter(shown.values()))
    if not known:
        return None
    figure, axes = new_figure()
    ticks = [
        f"{100 * group['from']:.1f}–{100 * group['to']:.1f}"
        if kind == "area"
        else f"{name}\n({group['classes']} classes)"
        for name, group in known.items()
    ]
    points = {name: list(map(point, groups.values())) for name, groups in shown.items()}
    draw_dots(axes, points, [LINE_COLOURS[name != baseline] for name in shown], ticks)
    title, alt, above, below = _COMPARED[kind]
    axes.set(ylabel=above, xlabel=below)
    return finished(figure, title, alt, grid="y")


def entries(row: Result, kind: str) -> dict[str, Result]:
    """A row's groups of a kind, by name or number."""
    groups = row[kind] or {}
    return groups if isinstance(groups, dict) else {str(n): group for n, group in enumerate(groups)}


def draw_line(
    axes: Any, points: Mapping[float, Point], label: str, colour: Any, ms: int = 4
) -> None:
    """A line through the values by x, in the band of their intervals."""
    known = {x: point for x, point in points.items() if point[0] is not None}
    values, low, high = zip(*known.values(), strict=True) if known else ((), (), ())
    axes.plot(list(known), values, "o-", ms=ms, color=colour, label=label)
    axes.fill_between(list(known), low, high, color=colour, alpha=0.15, lw=0)


def draw_dots(
    axes: Any, rows: Mapping[str, Sequence[Point]], colours: Iterable[str], ticks: Sequence[str]
) -> None:
    """A dot and an interval for each group, rows side by side."""
    for shift, ((name, points), colour) in enumerate(zip(rows.items(), colours, strict=False)):
        known = [(place, *point) for place, point in enumerate(points) if point[0] is not None]
        places, values, low, high = zip(*known, strict=True) if known else ((), (), (), ())
        x = [place + 0.2 * (shift - (len(rows) - 1) / 2) for place in places]
        axes.vlines(x, low, high, color=colour, lw=2)
        axes.plot(x, values, "o", color=colour, ms=5, label=name)
    tilt = {"rotation": 40, "ha": "right"} if len(ticks) > 5 else {}
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8, **tilt)
    axes.set_xlim(-0.5, len(ticks) - 0.5)


def new_figure(*grid: int, size: tuple[float, float] = (6.4, 3.8), **options: Any) -> Any:
    """matplotlib's figure and axes."""
    try:
        from matplotlib import figure as figures
    except ImportError as error:
        raise ValueError(
            'plots need matplotlib; install it: pip install "pixalign[bench]"'
        ) from error
    figure = figures.Figure(figsize=size)
    return figure, figure.subplots(*grid, **options)


def finished(figure: Any, title: str, alt: str, grid: str = "both", legends: int = 1) -> Plot:
    """The plot, with lines across both axes or one, and legends in the first so many panels."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis=grid, alpha=0.3)
    for axes in figure.axes[:legends]:
        axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    file = io.BytesIO()
    # The same bytes on every machine with these versions: no software tag. Few colours are drawn.
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    few = Image.open(file).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(file := io.BytesIO(), format="png", optimize=True)
    return Plot(title, alt, file.getvalue())
