"""A picture that was drawn, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import make_folder, slug, write_json
from pixalign.pictures.saving import write_png
from pixalign.text.entities import Entity


@dataclass(frozen=True, eq=False)
class Generation:
    """A picture, its prompt and seed, and what the method did at each of T steps to N entities.

    ``weights`` float32 [T, N] are the entities' weights in the prompt, ``errors`` float32 [T, N]
    the differences behind them; 1 and NaN where the method did nothing.
    """

    image: Image.Image
    prompt: str
    seed: int
    method: str
    entities: tuple[Entity, ...]
    weights: np.ndarray
    errors: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A file's name of this picture, without ending."""
        return f"{slug(self.prompt)}-{self.seed}-{self.method}"

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
