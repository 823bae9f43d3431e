"""The study's figures, drawn from its result files (needs the extra ``bench``: matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]

COLOURS = {"uncalibrated": "#777777", "default": "#0b6e4f", "default-3": "#c8553d"}
_DPI = 110


def draw_all(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every figure that the results allow."""
    import matplotlib

    matplotlib.use("Agg")
    return [
        _save(_controls(results["test"]), folder / "controls.png"),
        _save(_strength(results), folder / "strength.png"),
        _save(_groups(results["test"]), folder / "groups.png"),
        _save(_stress(results["stress"]), folder / "stress.png"),
    ]


def own_label(result: Result) -> str:
    """The default variant of a result in words: "1/γ = 1.5, centred"."""
    own = result["own"]
    centred = ", centred" if own.get("centred") else ""
    return f"1/γ = {1 / own.get('gamma', 1 / 3):g}{centred}"


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    # The same bytes on every machine with these versions: no date, no software tag.
    figure.savefig(path, dpi=_DPI, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return path


def _controls(test: Result) -> Any:
    """Differences to uncalibrated of presets and controls, with intervals."""
    import matplotlib.pyplot as plt

    own = own_label(test)
    rows = [
        ("default", own), ("random", f"{own}: random order"),
        ("reversed", f"{own}: reversed order"), ("inverse", f"{own}: exponents inverted"),
        ("best-order", f"{own}: best order (truth known)"),
        ("default-3", "1/γ = 3"), ("random-3", "1/γ = 3: random order"),
        ("reversed-3", "1/γ = 3: reversed order"), ("inverse-3", "1/γ = 3: exponents inverted"),
        ("best-order-3", "1/γ = 3: best order (truth known)"),
        ("constant-1.2", "constant 1.2"), ("constant-2", "constant 2"),
        ("constant-3", "constant 3"), ("constant-4", "constant 4"),
        ("paper", "preset paper"), ("official", "preset official"),
    ]  # fmt: skip
    figure, axes = plt.subplots(figsize=(7.5, 5.2))
    for place, (name, _) in enumerate(rows):
        entry = test["variants"][name]["oracle"]["minus_uncalibrated"]
        colour = "#0b6e4f" if name.startswith("default") else "#444444"
        axes.plot([entry["low"], entry["high"]], [place, place], color=colour, lw=2)
        axes.plot(entry["value"], place, "o", color=colour, ms=6)
    for line in (4.5, 9.5, 13.5):
        axes.axhline(line, color="#bbbbbb", lw=0.8)
    axes.axvline(0, color="black", lw=0.8)
    axes.set_yticks(range(len(rows)), [label for _, label in rows])
    axes.invert_yaxis()
    axes.set_xlabel("mIoU minus uncalibrated, points (95 % interval over images)")
    base = test["variants"]["uncalibrated"]["oracle"]["miou"]
    axes.set_title(f"{test['images']} {test['split']} scenes, uncalibrated {base:.1f}", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _strength(results: Mapping[str, Any]) -> Any:
    """How much exponents of growing strength change mIoU, for a strong model and weak ones."""
    import matplotlib.pyplot as plt

    shown = [("the embedded model", results["test"])]
    shown += [(f"after {steps} steps", young) for steps, young in results["young"].items()]
    figure, axes = plt.subplots(1, len(shown), figsize=(4.2 * len(shown), 3.6), squeeze=False)
    kinds = (
        ("gamma-", "by the ELBO, 1/γ", "#c8553d"),
        ("centred-", "by the ELBO, centred", "#0b6e4f"),
        ("constant-", "the same for all classes", "#3366aa"),
    )
    for plot, (title, result) in zip(axes[0], shown, strict=True):
        for prefix, label, colour in kinds:
            points = sorted(
                (float(name.removeprefix(prefix)), entry["oracle"]["minus_uncalibrated"])
                for name, entry in result["variants"].items()
                if name.startswith(prefix)
            )
            x = [1.0, *(p for p, _ in points)] if prefix == "constant-" else [p for p, _ in points]
            pad = [{"value": 0.0, "low": 0.0, "high": 0.0}] if prefix == "constant-" else []
            entries = pad + [entry for _, entry in points]
            plot.plot(x, [e["value"] for e in entries], "o-", ms=3, color=colour, label=label)
            plot.fill_between(
                x, [e["low"] for e in entries], [e["high"] for e in entries],
                color=colour, alpha=0.15, lw=0,
            )  # fmt: skip
        base = result["variants"]["uncalibrated"]["oracle"]["miou"]
        plot.axhline(0, color="black", lw=0.8)
        plot.set_title(
            f"{title}: uncalibrated {base:.1f}\n({result['images']} scenes)", fontsize=10
        )
        plot.set_xlabel("strength")
        plot.grid(alpha=0.3)
    axes[0][0].set_ylabel("mIoU minus uncalibrated, points")
    axes[0][0].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    return figure


def _groups(test: Result) -> Any:
    """Where calibration helps: by object area, training frequency and visible share."""
    import matplotlib.pyplot as plt

    titles = {
        "area": "tenths by the class's share of the picture",
        "frequency": "thirds by training frequency",
        "visible": "by visible share",
    }
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), width_ratios=(10, 4, 5))
    for plot, (kind, title) in zip(axes, titles.items(), strict=True):
        rows = [row for row in test["groups"][kind] if row["pairs"] >= 20]
        for shift, (name, label) in enumerate(
            (("default", own_label(test)), ("default-3", "1/γ = 3"))
        ):
            for place, row in enumerate(rows):
                entry = row[name]["minus_uncalibrated"]
                x = place + 0.24 * shift - 0.12
                plot.plot([x, x], [entry["low"], entry["high"]], color=COLOURS[name], lw=2)
                plot.plot(
                    x,
                    entry["value"],
                    "o",
                    color=COLOURS[name],
                    ms=5,
                    label=None if place else label,
                )
        plot.axhline(0, color="black", lw=0.8)
        labels = [f"{row['group']}\n(IoU {row['uncalibrated']['iou']:.0f})" for row in rows]
        plot.set_xticks(range(len(rows)), labels, fontsize=7, rotation=45, ha="right")
        plot.set_title(title, fontsize=10)
        plot.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("IoU minus uncalibrated, points")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def _stress(stress: Result) -> Any:
    """The target's IoU as each dial is turned."""
    import matplotlib.pyplot as plt

    rows: Sequence[Result] = stress["stress"]
    base = rows[0]
    dials = list(dict.fromkeys(row["dial"] for row in rows))
    labels = {
        "uncalibrated": "uncalibrated",
        "default": own_label(stress),
        "default-3": "1/γ = 3",
    }
    figure, axes = plt.subplots(1, len(dials), figsize=(3.6 * len(dials), 3.4), sharey=True)
    for plot, dial in zip(axes, dials, strict=True):
        turned = [base] + [row for row in rows if row["dial"] == dial and row["level"] > 0]
        for name, label in labels.items():
            entries = [row[name]["target"] for row in turned]
            x = [row["level"] for row in turned]
            plot.plot(
                x, [e["value"] for e in entries], "o-", ms=4, color=COLOURS[name], label=label
            )
            plot.fill_between(
                x, [e["low"] for e in entries], [e["high"] for e in entries],
                color=COLOURS[name], alpha=0.12, lw=0,
            )  # fmt: skip
        plot.set_title(dial, fontsize=10)
        plot.set_xlabel("dial")
        plot.grid(alpha=0.3)
    axes[0].set_ylabel("IoU of the target")
    axes[0].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    return figure
