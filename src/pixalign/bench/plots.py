"""Plots of results, as PNG (needs the extra ``bench``: matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pixalign.bench.metrics import THRESHOLDS
from pixalign.methods import METHODS

Result = Mapping[str, Any]  # a result.json
Point = Sequence[float | None]  # a value, and its interval's low and high end

LINE_COLOURS = (
    "#777777", "#0b6e4f", "#c8553d", "#3366aa", "#b8860b", "#7b4fa3", "#2a9d9d", "#a0496b",
)  # fmt: skip
_DPI = 110
_SIZE = (6.4, 3.8)
_COLLECTED = ("collect_range", "collect_timesteps", "elbo_timesteps", "elbo_weighting")
_LEGEND = {"fontsize": 8, "frameon": False}


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
        _sweep(result, "gamma"),
        _sweep(result, "elbo_steps"),
        _curves(result),
        effects(result) if len(result["rows"]) > len(LINE_COLOURS) else None,
        _compared(result, "area"),
        _compared(result, "frequency"),
        dials(result),
    ]
    return [plot for plot in made if plot is not None]


def effects(result: Result, names: Mapping[str, str] | None = None) -> Plot:
    """Rows as differences to their baselines; ``names`` chooses them, and says what to call them.

    A row that reads the true masks is marked.
    """
    rows = result["rows"]
    shown = names or {name: name for name, row in rows.items() if row["effect"]["oracle"]}
    figure, axes = _figure(figsize=(7.5, 1 + 0.28 * len(shown)))
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
    axes.grid(axis="x", alpha=0.3)
    return _finished(figure, "Effects", "Each row's mIoU minus its baseline's")


def strengths(results: Mapping[str, Result]) -> Plot:
    """What exponents of growing strength do to mIoU: a panel for each result, by its title."""
    figure, grid = _figure(1, len(results), figsize=(4 * len(results), 3.6), squeeze=False)
    for axes, (title, result) in zip(grid[0], results.items(), strict=True):
        for (label, points), colour in zip(_by_strength(result), LINE_COLOURS[1:], strict=False):
            _line(axes, points, label, colour, ms=3)
        base = result["rows"][result["baseline"]]["oracle"]["miou"]
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(f"{title}: {result['baseline']} {base:.1f}\n({result['done']} images)")
        axes.set_xlabel("strength")
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel(f"mIoU minus {result['baseline']}, points")
    grid[0][0].legend(**_LEGEND)
    return _finished(figure, "By strength", "mIoU over the strength of the exponents")


def _by_strength(result: Result) -> list[tuple[str, dict[float, Point]]]:
    """Effects by strength of the rows that differ in it alone: by the ELBO, centred, constant."""
    own = next(row["config"] for row in result["rows"].values() if row["scores"] is None)
    kinds: dict[str, dict[float, Point]] = {
        "by the ELBO, centred": {}, "by the ELBO, 1/γ": {}, "the same for all classes": {}
    }  # fmt: skip
    for row in result["rows"].values():
        config, effect = row["config"], row["effect"]["oracle"]
        by_rule = row["exponents"] == "elbo" and config["calibrate"] != "none"
        strange = not (by_rule and METHODS[row["method"]].separable) or effect is None
        if strange or any(config[key] != own[key] for key in _COLLECTED):
            continue
        kind = "the same for all classes" if row["scores"] else "by the ELBO, 1/γ"
        kind = "by the ELBO, centred" if config["centred"] and not row["scores"] else kind
        kinds[kind][round(1 / (row["scores"] or config["gamma"]), 6)] = effect
    nothing = {1.0: (0.0, 0.0, 0.0)}
    return [(kind, dict(sorted((nothing | points).items()))) for kind, points in kinds.items()]


def groups(result: Result, names: Sequence[str]) -> Plot:
    """Effects of some rows by area, frequency and visible share, and the baseline's IoU."""
    rows = result["rows"]
    kinds = {
        "area": "by share of the picture, %", "visible": "by visible share, %",
        "frequency": "by training frequency",
    }  # fmt: skip
    figure, axes = _figure(1, 3, figsize=(13, 3.8), width_ratios=(10, 5, 4))
    for plot, (kind, title) in zip(axes, kinds.items(), strict=True):
        known = _entries(rows[result["baseline"]], kind)
        labels = [
            f"{100 * one['from']:.3g}–{100 * one['to']:.3g}" if "from" in one else label
            for label, one in known.items()
        ]
        values = [_point(one)[0] for one in known.values()]
        ticks = [f"{x}\n({value:.0f})" for x, value in zip(labels, values, strict=True)]
        shown = {name: [x["effect"] for x in _entries(rows[name], kind).values()] for name in names}
        plot.axhline(0, color="black", lw=0.8)
        _dots(plot, shown, LINE_COLOURS[1:], ticks)
        plot.set_title(title, fontsize=10)
    axes[0].set_ylabel(f"IoU minus {result['baseline']}, points")
    return _finished(figure, "By group", "Differences by area, visible share and frequency")


def dials(result: Result) -> Plot | None:
    """The changed class's IoU as each dial is turned; "base=0" is level 0 of all."""
    levels = next(iter(result["rows"].values()))["groups"] or {}
    turns = [level.split("=") for level in levels]
    parsed = [(dial, float(level), f"{dial}={level}") for dial, level in turns]
    dials = list(dict.fromkeys(dial for dial, level, _ in parsed if level > 0))
    if not dials:
        return None
    wide, tall = min(len(dials), 2), (len(dials) + 1) // 2
    size = (3.2 * wide, 2.6 * tall)
    figure, grid = _figure(tall, wide, figsize=size, sharey=True, squeeze=False)
    for spare in grid.flat[len(dials) :]:
        spare.remove()
    for axes, dial in zip(grid.flat, dials, strict=False):
        turned = [(x, group) for own, x, group in parsed if own == dial or x == 0]
        for (name, row), colour in zip(result["rows"].items(), _colours(result), strict=True):
            _line(axes, {x: _point(row["groups"][group]) for x, group in turned}, name, colour)
        axes.set_title(dial, fontsize=10)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("IoU, %")
    grid[0][0].legend(**_LEGEND)
    return _finished(figure, "By dial", "IoU of the changed class as each dial is turned")


def _curves(result: Result) -> Plot:
    """mIoU over the threshold, a line for each row."""
    figure, axes = _figure(figsize=_SIZE)
    for (name, row), colour in zip(result["rows"].items(), _colours(result), strict=True):
        values = [float("nan") if value is None else value for value in row["curve"]]
        axes.plot(THRESHOLDS, values, color=colour, label=name, lw=1.6)
        best, fixed = row["oracle"], row["fixed"]
        axes.plot(best["threshold"], best["miou"], "o", color=colour, ms=5)
        axes.plot(fixed["threshold"], fixed["miou"], "s", mfc="white", color=colour, ms=5)
    axes.set_xlim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(**_LEGEND)
    axes.set_xlabel("threshold (● the best, □ the one fixed in advance)")
    axes.set_ylabel("mIoU, %")
    return _finished(figure, "By threshold", "mIoU of each row at every threshold")


def _colours(result: Result) -> list[Any]:
    """The baseline grey, the others in order; shades of one colour where rows are many."""
    names = list(result["rows"])
    if (
        len(names) > len(LINE_COLOURS)
        or _varying(result, "gamma")
        or _varying(result, "elbo_steps")
    ):
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
    by_gamma = field == "gamma"
    places = {name: 1 / value if by_gamma else value for name, value in values.items()}
    names = sorted(places, key=lambda name: places[name])
    figure, axes = _figure(figsize=_SIZE)
    kinds = (
        ("oracle", "best threshold", LINE_COLOURS[1]),
        ("fixed", "fixed threshold", LINE_COLOURS[3]),
    )
    for kind, label, colour in kinds:
        figures = {places[name]: result["rows"][name][kind] for name in names}
        ends = ("miou", "miou_low", "miou_high")
        _line(axes, {x: [row[end] for end in ends] for x, row in figures.items()}, label, colour)
    axes.set_xticks(list(figures), [f"{x:g}" for x in figures])
    axes.set_xlabel("1/γ (1: nothing is calibrated)" if by_gamma else "timesteps of the ELBO")
    axes.set_ylabel("mIoU, %")
    axes.grid(alpha=0.3)
    axes.legend(**_LEGEND)
    if by_gamma:
        return _finished(figure, "By strength", "mIoU over the strength of calibration")
    return _finished(figure, "By ELBO steps", "mIoU over the number of ELBO steps")


def _compared(result: Result, kind: str) -> Plot | None:
    """Area or frequency: the row to look at beside its baseline.

    If it is the baseline itself, beside the last row.
    """
    rows, focus = result["rows"], result["focus"]
    baseline = rows[focus]["baseline"]
    others = [focus] if baseline != focus else [name for name in rows if name != focus][-1:]
    names = [name for name in (baseline, *others) if name in rows]
    known = _entries(rows[names[0]], kind)
    if not known:
        return None
    figure, axes = _figure(figsize=_SIZE)
    shown = {name: list(map(_point, _entries(rows[name], kind).values())) for name in names}
    by_area = kind == "area"
    ticks = [
        f"{100 * one['from']:.1f}–{100 * one['to']:.1f}"
        if by_area
        else f"{name}\n({one['classes']} classes)"
        for name, one in known.items()
    ]
    _dots(axes, shown, [LINE_COLOURS[name != baseline] for name in names], ticks)
    if not by_area:
        axes.set_ylabel("mIoU, %")
        words = "mIoU by how often training showed the class"
        return _finished(figure, "By frequency", words)
    axes.set_xlabel("the class's share of the picture, %: tenths of all (image, class) pairs")
    axes.set_ylabel("IoU of a pair, %")
    return _finished(figure, "By area", "IoU by the class's share of the picture")


def _entries(row: Result, kind: str) -> dict[str, Result]:
    """A row's groups of a kind, by name or number."""
    found = row[kind] or {}
    return found if isinstance(found, dict) else {str(n): one for n, one in enumerate(found)}


def _point(entry: Result) -> Point:
    return [entry.get("iou", entry.get("miou")), entry["low"], entry["high"]]


def _line(axes: Any, points: Mapping[float, Point], label: str, colour: Any, ms: int = 4) -> None:
    """A line through the values by x, in the band of their intervals."""
    known = {x: point for x, point in points.items() if point[0] is not None}
    values, low, high = zip(*known.values(), strict=True) if known else ((), (), ())
    axes.plot(list(known), values, "o-", ms=ms, color=colour, label=label)
    axes.fill_between(list(known), low, high, color=colour, alpha=0.15, lw=0)


def _dots(
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
    axes.grid(axis="y", alpha=0.3)
    axes.legend(**_LEGEND)


def _figure(*grid: int, **options: Any) -> Any:
    """matplotlib's figure and axes."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(
            'plots need matplotlib; install it: pip install "pixalign[bench]"'
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(*grid, **options)


def _finished(figure: Any, title: str, alt: str) -> Plot:
    import matplotlib.pyplot as plt

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    file = io.BytesIO()
    # The same bytes on every machine with these versions: no software tag.
    figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
    plt.close(figure)
    return Plot(title, alt, file.getvalue())
