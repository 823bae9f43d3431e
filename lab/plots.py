"""Plots of the studies: strengths of the exponents, effects by group, passes, reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pixalign.bench.plots import (
    LINE_COLOURS,
    Plot,
    draw_dots,
    draw_line,
    entries,
    finished,
    new_figure,
)
from pixalign.bench.tables import Point, Result, point
from pixalign.methods import METHODS

STEPS = "lab-evidence-steps"
_COLLECTED = ("collect_range", "collect_timesteps", "elbo_timesteps", "elbo_weighting")


def strengths(results: Mapping[str, Result]) -> Plot:
    """What exponents of growing strength do to mIoU: a panel for each result, by its title."""
    figure, grid = new_figure(1, len(results), size=(4 * len(results), 3.6), squeeze=False)
    for axes, (title, result) in zip(grid[0], results.items(), strict=True):
        for (label, points), colour in zip(_by_strength(result), LINE_COLOURS[1:], strict=False):
            draw_line(axes, points, label, colour, ms=3)
        base = result["rows"][result["baseline"]]["oracle"]["miou"]
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(f"{title}: {result['baseline']} {base:.1f}\n({result['done']} images)")
        axes.set_xlabel("strength")
    grid[0][0].set_ylabel(f"mIoU minus {result['baseline']}, points")
    return finished(figure, "By strength", "mIoU over the strength of the exponents")


def _by_strength(result: Result) -> list[tuple[str, dict[float, Point]]]:
    """Effects by strength of the rows that differ in it alone: by the ELBO, centred, constant."""
    own = next(row["config"] for row in result["rows"].values() if row["scores"] is None)
    kinds: list[dict[float, Point]] = [{1.0: (0.0, 0.0, 0.0)} for _ in range(3)]
    centred, plain, constant = kinds
    for row in result["rows"].values():
        config, effect = row["config"], row["effect"]["oracle"]
        by_rule = row["exponents"] == "elbo" and config["calibrate"] != "none"
        alike = all(config[key] == own[key] for key in _COLLECTED)
        if effect and by_rule and alike and METHODS[row["method"]].separable:
            kind = constant if row["scores"] else centred if config["centred"] else plain
            kind[round(1 / (row["scores"] or config["gamma"]), 6)] = effect
    labels = ("by the ELBO, centred", "by the ELBO, 1/γ", "the same for all classes")
    return [(x, dict(sorted(points.items()))) for x, points in zip(labels, kinds, strict=True)]


def groups(result: Result, names: Sequence[str]) -> Plot:
    """Effects of some rows by area, frequency and visible share, and the baseline's IoU."""
    rows = result["rows"]
    kinds = {
        "area": "by share of the picture, %", "visible": "by visible share, %",
        "frequency": "by training frequency",
    }  # fmt: skip
    figure, axes = new_figure(1, 3, size=(13, 3.8), width_ratios=(10, 5, 4))
    for plot, (kind, title) in zip(axes, kinds.items(), strict=True):
        known = entries(rows[result["baseline"]], kind)
        labels = [
            f"{100 * one['from']:.3g}–{100 * one['to']:.3g}" if "from" in one else label
            for label, one in known.items()
        ]
        values = [point(one)[0] for one in known.values()]
        ticks = [f"{x}\n({value:.0f})" for x, value in zip(labels, values, strict=True)]
        shown = {name: [x["effect"] for x in entries(rows[name], kind).values()] for name in names}
        plot.axhline(0, color="black", lw=0.8)
        draw_dots(plot, shown, LINE_COLOURS[1:], ticks)
        plot.set_title(title, fontsize=10)
    axes[0].set_ylabel(f"IoU minus {result['baseline']}, points")
    alt = "Differences by area, visible share and frequency"
    return finished(figure, "By group", alt, grid="y", legends=3)


def passes(results: Mapping[str, Result]) -> Plot:
    """mIoU over the passes a class that the ELBO takes: a panel for each result, by its title."""
    figure, grid = new_figure(1, len(results), size=(3.6 * len(results), 3.6), squeeze=False)
    for axes, (title, result) in zip(grid[0], results.items(), strict=True):
        for method, colour in zip(("elbo", "dense"), LINE_COLOURS[1:], strict=False):
            values = {
                float(name.split(", ")[1]): point(row["oracle"])
                for name, row in result["rows"].items()
                if name.startswith(f"{method}, ")
            }
            draw_line(axes, dict(sorted(values.items())), method, colour)
        for name, steps, mark in (("paper", 20, "s"), ("fast", 5, "*")):
            axes.plot([steps], [result["rows"][name]["oracle"]["miou"]], mark, ms=9, label=name)
        base = result["rows"]["attention"]["oracle"]["miou"]
        axes.axhline(base, color="grey", lw=0.8, ls="--", label="attention")
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 3, 5, 10, 20], [1, 2, 3, 5, 10, 20])
        axes.set_title(f"{title} ({result['done']} scenes)")
        axes.set_xlabel("timesteps of the ELBO")
    grid[0][0].set_ylabel("mIoU, %")
    return finished(figure, "Quality against passes", "mIoU over the timesteps of the ELBO")


def seconds(record: Mapping[str, Any], steps: Result) -> Plot:
    """Seconds over the number of classes, and the mIoU of ``steps`` over the seconds of as many
    passes, both by a record of benchmarks/speed.py."""
    figure, (left, right) = new_figure(1, 2, size=(10, 3.8))
    rows = {row["name"]: row for row in record["rows"]}
    for name, colour in zip(("dense", "dense, compiled"), LINE_COLOURS[1:], strict=False):
        known = {each["classes"]: each[name]["seconds"]["total"] for each in record["sweep"]}
        known[record["classes"]] = rows[name]["seconds"]["total"]
        left.plot(*zip(*sorted(known.items()), strict=True), "o-", color=colour, label=name)
    left.set_xlabel("classes")
    left.set_ylabel("seconds")
    for kind, colour in zip(("elbo", "dense"), LINE_COLOURS[1:], strict=False):
        timed = rows[f"{kind}, compiled"]["seconds"]
        rest, most = timed["total"] - timed["elbo"], timed["elbo"]
        values = {
            rest + most * float(name.split(", ")[1]) / 20: point(row["oracle"])
            for name, row in steps["rows"].items()
            if name.startswith(f"{kind}, ")
        }
        draw_line(right, dict(sorted(values.items())), kind, colour)
    for name, row, mark in (("paper", "elbo, compiled", "s"), ("fast", "fast, compiled", "*")):
        place = rows[row]["seconds"]["total"], steps["rows"][name]["oracle"]["miou"]
        right.plot(*place, mark, ms=10, label=name)
    right.set_xlabel(f"seconds, {record['classes']} classes, compiled")
    right.set_ylabel("mIoU of lab:sd2, %")
    left.set_xticks(sorted(known))
    return finished(figure, "Seconds", "Seconds over classes, and mIoU over seconds", legends=2)


def filters(records: Mapping[str, Mapping[str, Any]]) -> Plot:
    """Precision of drawn pictures' masks over the share of objects that filters keep: a panel a
    model, by its title. The band is the best filter's 95 % interval, the square the verdict."""
    figure, grid = new_figure(1, len(records), size=(4.8 * len(records), 4.8), squeeze=False)
    for axes, (title, record) in zip(grid[0], records.items(), strict=True):
        best = record["best"]["name"]
        for (name, rows), colour in zip(record["curves"].items(), LINE_COLOURS[1:], strict=False):
            shares, precisions = ([row[key] for row in rows] for key in ("kept", "precision"))
            x, y = ([each["value"] for each in column] for column in (shares, precisions))
            chosen = name == best
            control = name == "share"
            label = "size of the mask (control)" if control else name + " (chosen)" * chosen
            style = "k:" if control else "o-"
            about = {} if control else {"color": colour, "ms": 3}
            axes.plot(x, y, style, lw=2.2 if chosen else 1.1, label=label, **about)
            if chosen:
                ends = ([each[end] for each in precisions] for end in ("low", "high"))
                axes.fill_between(x, *ends, color=colour, alpha=0.15, lw=0)
        sure, every = record["verdict"], record["unfiltered"]
        axes.plot(sure["kept"]["value"], sure["precision"]["value"], "s", color="black", ms=6,
                  label="verdict sure")  # fmt: skip
        axes.axhline(every["precision"]["value"], color="grey", lw=0.8, ls="--",
                     label="all, or some at random")  # fmt: skip
        axes.set_title(f"{title} ({record['judged']} objects)")
        axes.set_xlabel("kept, % of the objects that prompts name")
        axes.invert_xaxis()
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
        axes.legend(fontsize=8, frameon=False, **below)
    grid[0][0].set_ylabel("masks that are right, %")
    alt = "Share of right masks over the share of objects that is kept"
    return finished(figure, "Filters", alt, legends=0)


def reliability(records: Mapping[str, Mapping[str, Any]]) -> Plot:
    """How often the most probable label is right, by its probability: a panel for each model."""
    figure, grid = new_figure(1, len(records), size=(3.4 * len(records), 3.6), squeeze=False)
    kinds = {"before, objects": "temperature 0.1", "after, objects": "fitted on val"}
    for axes, (title, record) in zip(grid[0], records.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="grey", lw=0.8, ls="--")
        for (kind, label), colour in zip(kinds.items(), LINE_COLOURS[1:], strict=False):
            own = record["reliability"][kind]
            triples = zip(own["pixels"], own["confidence"], own["accuracy"], strict=True)
            kept = [(said, right) for count, said, right in triples if count]
            said, right = zip(*kept, strict=True)
            axes.plot(said, right, "o-", ms=3, color=colour, label=f"{label}, {own['error']:.1%}")
        axes.set_title(f"{title} ({record['scenes']} scenes)")
        axes.set_xlabel("said probability")
    grid[0][0].set_ylabel("share that is right")
    alt = "Reliability on objects and their borders, with the expected calibration error"
    return finished(figure, "Reliability", alt, legends=len(records))
