"""Plots of results, as PNG (needs the extra ``bench``: matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pixalign.bench.metrics import THRESHOLDS

Result = Mapping[str, Any]  # a result.json

COLOURS = (
    "#777777", "#0b6e4f", "#c8553d", "#3366aa", "#b8860b", "#7b4fa3", "#2a9d9d", "#a0496b",
)  # fmt: skip
_DPI = 110
_COLLECTED = ("collect_range", "collect_timesteps", "elbo_timesteps", "elbo_weighting")
_BAND = {"alpha": 0.15, "lw": 0}


@dataclass(frozen=True)
class Plot:
    """A PNG and what it shows, in words."""

    title: str
    alt: str
    png: bytes


def plots(result: Result) -> list[Plot]:
    """Those that the result has something for."""
    plt = _pyplot()
    makers: tuple[Callable[[Any, Result], Plot | None], ...] = (
        _gamma, _steps, _curves, _many_effects, _area, _frequency, _dials
    )  # fmt: skip
    made = [maker(plt, result) for maker in makers] if result["rows"] else []
    return [plot for plot in made if plot is not None]


def effects(result: Result, names: Mapping[str, str] | None = None) -> Plot:
    """Rows as differences to their baselines; ``names`` chooses them, and says what to call them.

    A row that reads the true masks is marked.
    """
    plt, rows = _pyplot(), result["rows"]
    shown = names or {name: name for name, row in rows.items() if row["effect"]["oracle"]}
    figure, axes = plt.subplots(figsize=(7.5, 1 + 0.28 * len(shown)))
    for height, name in enumerate(shown):
        value, low, high = rows[name]["effect"]["oracle"]
        colour = COLOURS[2] if rows[name]["supervised"] else COLOURS[1]
        axes.plot([low, high], [height, height], color=colour, lw=2)
        axes.plot(value, height, "o", color=colour, ms=6)
    marked = [f"{x} (supervised)" if rows[n]["supervised"] else x for n, x in shown.items()]
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(shown)), marked)
    axes.invert_yaxis()
    axes.set_xlabel("mIoU minus the baseline, points (95 % interval over images)")
    axes.grid(axis="x", alpha=0.3)
    return _finished(plt, figure, "Effects", "Each row's mIoU minus its baseline's")


def _many_effects(plt: Any, result: Result) -> Plot | None:
    return effects(result) if len(result["rows"]) > len(COLOURS) else None


def strengths(results: Mapping[str, Result]) -> Plot:
    """What exponents of growing strength do to mIoU: a panel for each result, by its title."""
    plt = _pyplot()
    figure, grid = plt.subplots(1, len(results), figsize=(4 * len(results), 3.6), squeeze=False)
    for axes, (title, result) in zip(grid[0], results.items(), strict=True):
        for (label, points), colour in zip(_by_strength(result), COLOURS[1:], strict=False):
            x = [strength for strength, _ in points]
            value, low, high = zip(*(effect for _, effect in points), strict=True)
            axes.plot(x, value, "o-", ms=3, color=colour, label=label)
            axes.fill_between(x, low, high, color=colour, **_BAND)
        base = result["rows"][result["baseline"]]["oracle"]["miou"]
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(f"{title}: {result['baseline']} {base:.1f}\n({result['done']} images)")
        axes.set_xlabel("strength")
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel(f"mIoU minus {result['baseline']}, points")
    grid[0][0].legend(fontsize=8, frameon=False)
    return _finished(plt, figure, "By strength", "mIoU over the strength of the exponents")


def _by_strength(result: Result) -> list[tuple[str, list[tuple[float, list[float]]]]]:
    """Effects by strength of the rows that differ in it alone: by the ELBO, centred, constant."""
    own = next(row["config"] for row in result["rows"].values() if row["scores"] is None)
    kinds: dict[str, dict[float, list[float]]] = {
        "by the ELBO, centred": {}, "by the ELBO, 1/γ": {}, "the same for all classes": {}
    }  # fmt: skip
    for row in result["rows"].values():
        config, effect = row["config"], row["effect"]["oracle"]
        strange = row["exponents"] != "elbo" or row["method"] != "elbo" or effect is None
        if strange or any(config[key] != own[key] for key in _COLLECTED):
            continue
        kind = "the same for all classes" if row["scores"] else "by the ELBO, 1/γ"
        kind = "by the ELBO, centred" if config["centred"] and not row["scores"] else kind
        kinds[kind][round(1 / (row["scores"] or config["gamma"]), 6)] = effect
    zero = [0.0, 0.0, 0.0]
    return [(kind, sorted(({1.0: zero} | points).items())) for kind, points in kinds.items()]


def groups(result: Result, names: Sequence[str]) -> Plot:
    """Effects of some rows by area, frequency and visible share, and the baseline's IoU."""
    plt, rows = _pyplot(), result["rows"]
    base = rows[result["baseline"]]
    kinds = {
        "area": "by share of the picture, %", "visible": "by visible share, %",
        "frequency": "by training frequency",
    }  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), width_ratios=(10, 5, 4))
    for plot, (kind, title) in zip(axes, kinds.items(), strict=True):
        known = base[kind] if isinstance(base[kind], list) else list(base[kind].values())
        labels = (
            [f"{100 * group['from']:.3g}–{100 * group['to']:.3g}" for group in known]
            if isinstance(base[kind], list)
            else list(base[kind])
        )
        values = [group.get("iou", group.get("miou")) for group in known]
        ticks = [f"{x}\n({value:.0f})" for x, value in zip(labels, values, strict=True)]
        lines = []
        for name, colour in zip(names, COLOURS[1:], strict=False):
            entries = rows[name][kind]
            entries = entries if isinstance(entries, list) else list(entries.values())
            points = [dict(zip(("iou", "low", "high"), x["effect"], strict=True)) for x in entries]
            lines.append((name, points, colour))
        plot.axhline(0, color="black", lw=0.8)
        _points(plot, lines, ticks, "iou")
        plot.set_title(title, fontsize=10)
    axes[0].set_ylabel(f"IoU minus {result['baseline']}, points")
    return _finished(plt, figure, "By group", "Differences by area, visible share and frequency")


def dials(result: Result) -> Plot | None:
    """The changed class's IoU as each dial is turned."""
    return _dials(_pyplot(), result)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(
            'plots need matplotlib; install it: pip install "pixalign[bench]"'
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _finished(plt: Any, figure: Any, title: str, alt: str) -> Plot:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    file = io.BytesIO()
    # The same bytes on every machine with these versions: no software tag.
    figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
    plt.close(figure)
    return Plot(title, alt, file.getvalue())


def _curves(plt: Any, result: Result) -> Plot:
    """mIoU over the threshold, a line for each row."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for (name, row), colour in zip(result["rows"].items(), _colours(result), strict=True):
        values = [float("nan") if value is None else value for value in row["curve"]]
        axes.plot(THRESHOLDS, values, color=colour, label=name, lw=1.6)
        best = row["oracle"]
        axes.plot(best["threshold"], best["miou"], "o", color=colour, ms=5)
        fixed = row["fixed"]
        axes.plot(fixed["threshold"], fixed["miou"], "s", mfc="white", color=colour, ms=5)
    axes.set_xlabel("threshold (● the best, □ the one fixed in advance)")
    axes.set_ylabel("mIoU, %")
    axes.set_xlim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return _finished(plt, figure, "By threshold", "mIoU of each row at every threshold")


def _colours(result: Result) -> list[Any]:
    """The baseline grey, the others in order; shades of one colour where rows are many."""
    names = list(result["rows"])
    if len(names) > len(COLOURS) or _varying(result, "gamma") or _varying(result, "elbo_steps"):
        import matplotlib

        shades = matplotlib.colormaps["viridis"]
        return [shades(0.9 * place / max(len(names) - 1, 1)) for place in range(len(names))]
    others = iter(COLOURS[1:])
    return [COLOURS[0] if name == result["baseline"] else next(others) for name in names]


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


def _gamma(plt: Any, result: Result) -> Plot | None:
    values = _varying(result, "gamma")
    if values is None:
        return None
    places = {name: 1 / gamma for name, gamma in values.items()}
    words = "mIoU over the strength of calibration"
    return _over(plt, result, places, "By strength", "1/γ (1: nothing is calibrated)", words)


def _steps(plt: Any, result: Result) -> Plot | None:
    places = _varying(result, "elbo_steps")
    if places is None:
        return None
    words = "mIoU over the number of ELBO steps"
    return _over(plt, result, places, "By ELBO steps", "timesteps of the ELBO", words)


def _over(
    plt: Any, result: Result, places: Mapping[str, float], title: str, axis: str, alt: str
) -> Plot:
    """mIoU with its interval over one number, at the best threshold and at the fixed one."""
    names = sorted(places, key=lambda name: places[name])
    x = [places[name] for name in names]
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    kinds = (("oracle", "best threshold", COLOURS[1]), ("fixed", "fixed threshold", COLOURS[3]))
    for kind, label, colour in kinds:
        rows = [result["rows"][name][kind] for name in names]
        axes.plot(x, [row["miou"] for row in rows], "o-", ms=4, color=colour, label=label)
        low, high = ([row[f"miou_{end}"] for row in rows] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=colour, **_BAND)
    axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.set_xlabel(axis)
    axes.set_ylabel("mIoU, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return _finished(plt, figure, title, alt)


def _compared(result: Result) -> list[tuple[str, Result, str]]:
    """The row to look at beside its baseline, or beside the last row if it is the baseline itself.

    Each as its name, its figures and a colour, the baseline first.
    """
    rows, focus = result["rows"], result["focus"]
    baseline = rows[focus]["baseline"]
    others = [focus] if baseline != focus else [name for name in rows if name != focus][-1:]
    names = [name for name in (baseline, *others) if name in rows]
    return [(name, rows[name], COLOURS[name != baseline]) for name in names]


def _area(plt: Any, result: Result) -> Plot | None:
    rows = _compared(result)
    tenths = rows[0][1]["area"]
    if not tenths:
        return None
    ticks = [f"{100 * one['from']:.1f}–{100 * one['to']:.1f}" for one in tenths]
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    _points(axes, [(name, row["area"], colour) for name, row, colour in rows], ticks, "iou")
    axes.set_xlabel("the class's share of the picture, %: tenths of all (image, class) pairs")
    axes.set_ylabel("IoU of a pair, %")
    return _finished(plt, figure, "By area", "IoU by the class's share of the picture")


def _frequency(plt: Any, result: Result) -> Plot | None:
    rows = _compared(result)
    groups = rows[0][1]["frequency"]
    if groups is None:
        return None
    ticks = [f"{name}\n({one['classes']} classes)" for name, one in groups.items()]
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    entries = [(name, list(row["frequency"].values()), colour) for name, row, colour in rows]
    _points(axes, entries, ticks, "miou")
    axes.set_ylabel("mIoU, %")
    return _finished(plt, figure, "By frequency", "mIoU by how often training showed the class")


def _points(
    axes: Any,
    rows: Sequence[tuple[str, Sequence[Result], str]],
    ticks: Sequence[str],
    key: str,
) -> None:
    """A dot and an interval for each group, rows side by side."""
    for shift, (name, groups, colour) in enumerate(rows):
        known = [(place, one) for place, one in enumerate(groups) if one[key] is not None]
        x = [place + 0.2 * (shift - (len(rows) - 1) / 2) for place, _ in known]
        low, middle, high = ([one[end] for _, one in known] for end in ("low", key, "high"))
        axes.vlines(x, low, high, color=colour, lw=2)
        axes.plot(x, middle, "o", color=colour, ms=5, label=name)
    tilt = {"rotation": 40, "ha": "right"} if len(ticks) > 5 else {}
    axes.set_xticks(range(len(ticks)), ticks, fontsize=8, **tilt)
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


def _dials(plt: Any, result: Result) -> Plot | None:
    """The changed class's IoU as each dial is turned; "base=0" is level 0 of all."""
    levels = next(iter(result["rows"].values()))["groups"]
    if levels is None:
        return None
    parsed = [
        (dial, float(level), f"{dial}={level}") for dial, level in (x.split("=") for x in levels)
    ]
    dials = list(dict.fromkeys(dial for dial, level, _ in parsed if level > 0))
    base = [(0.0, name) for _, level, name in parsed if level == 0]
    if not dials:
        return None
    wide, tall = min(len(dials), 2), (len(dials) + 1) // 2
    size = (3.2 * wide, 2.6 * tall)
    figure, grid = plt.subplots(tall, wide, figsize=size, sharey=True, squeeze=False)
    for spare in grid.flat[len(dials) :]:
        spare.remove()
    for axes, dial in zip(grid.flat, dials, strict=False):
        turned = [*base, *((level, name) for own, level, name in parsed if own == dial)]
        for (name, row), colour in zip(result["rows"].items(), _colours(result), strict=True):
            known = [
                (x, row["groups"][g]) for x, g in turned if row["groups"][g]["iou"] is not None
            ]
            x = [place for place, _ in known]
            axes.plot(x, [one["iou"] for _, one in known], "o-", ms=4, color=colour, label=name)
            low, high = ([one[end] for _, one in known] for end in ("low", "high"))
            axes.fill_between(x, low, high, color=colour, **_BAND)
        axes.set_title(dial, fontsize=10)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("IoU, %")
    grid[0][0].legend(fontsize=8, frameon=False)
    return _finished(plt, figure, "By dial", "IoU of the changed class as each dial is turned")
