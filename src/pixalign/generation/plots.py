"""What a method did to the entities, step by step, as a picture (needs matplotlib)."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

from pixalign.core.files import write_bytes
from pixalign.generation.result import Generation


def check_plots() -> None:
    """Refuse where matplotlib is not there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError('plots need matplotlib; install it: pip install "pixalign[bench]"')


def plot_weights(made: Generation, path: Path) -> Path:
    """Write a PNG of each entity's weight in the prompt at each step."""
    check_plots()
    from matplotlib.figure import Figure

    if not made.entities:
        raise ValueError(f"{made.prompt!r} has no entities whose weights could be plotted")
    figure = Figure(figsize=(7, 3.2))
    axes = figure.subplots()
    for number, entity in enumerate(made.entities):
        axes.step(range(len(made.weights)), made.weights[:, number], where="mid", label=entity.text)
    axes.set(xlabel="step, from noise to picture", ylabel="weight")
    axes.set_title(made.prompt, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)
    figure.tight_layout()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return write_bytes(path, file.getvalue())
