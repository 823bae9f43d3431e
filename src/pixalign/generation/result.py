"""A picture that was drawn, and how, step by step."""

from __future__ import annotations

import importlib.util
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import make_folder, unique_slug, write_bytes, write_json
from pixalign.pictures.saving import write_png
from pixalign.text.entities import Entity


@dataclass(frozen=True, eq=False)
class Generation:
    """A picture, its prompt and seed, and what the method did at each of T steps to N entities.

    ``weights`` float32 [T, N] are the entities' weights in the prompt, ``errors`` float32 [T, N]
    the differences behind them; 1 and NaN where the method did nothing.
    ``latents`` float32 [C, h, w] are what the picture was decoded from.
    """

    image: Image.Image
    prompt: str
    seed: int
    method: str
    entities: tuple[Entity, ...]
    weights: np.ndarray
    errors: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)
    latents: np.ndarray | None = None

    @property
    def name(self) -> str:
        """A file's name of this picture, without ending."""
        return f"{unique_slug(self.prompt)}-{self.seed}-{self.method}"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the picture, as JSON-able values."""
        return {
            "prompt": self.prompt,
            "seed": self.seed,
            "method": self.method,
            "entities": [entity.text for entity in self.entities],
            "weights": np.round(self.weights, 2).tolist(),
            "errors": [[None if np.isnan(e) else float(e) for e in row] for row in self.errors],
            **self.provenance,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write NAME.png and NAME.json into a folder; the picture's path."""
        path = make_folder(folder)
        write_json(path / f"{self.name}.json", self.to_dict())
        return write_png(path / f"{self.name}.png", self.image)


def check_plots() -> None:
    """Refuse to plot where matplotlib is not there."""
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
