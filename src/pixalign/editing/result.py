"""An edited picture, and how it came about."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pixalign.core.files import write_json, writing_folder
from pixalign.pictures import drawing as viz
from pixalign.pictures.grid import Cell, picture_grid
from pixalign.pictures.saving import write_png

_SIDE = 256  # pixels of a panel's longer side, at least


@dataclass(frozen=True, eq=False)
class Edit:
    """A picture before and after, and what the source's way leads to without the edit.

    All have the size of the picture that was given, whatever the size at which the model works.
    ``heatmaps`` float32 [changes, H, W] in [0, 1] are of the words in ``changes`` (source words,
    target words); None where none were used. ``figures`` hold the reconstruction's PSNR in dB at
    the model's size: "psnr" from the picture, "psnr_vae" from what the VAE alone makes of it, "vae"
    of that from the picture; nothing for a generated one.
    """

    source: Image.Image
    reconstruction: Image.Image
    edited: Image.Image
    source_prompt: str
    target_prompt: str
    method: str
    changes: tuple[tuple[str, str], ...]
    heatmaps: np.ndarray | None
    figures: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def heatmap(self) -> Image.Image | None:
        """The heatmaps of all changed words in one picture, in colours."""
        return None if self.heatmaps is None else viz.heat(self.heatmaps.max(0))

    def compare(self) -> Image.Image:
        """All pictures side by side, each with a caption."""
        panels: list[Cell] = [(self.source, f"source: {self.source_prompt}")]
        if self.figures:
            panels.append((self.reconstruction, f"reconstruction {self.figures['psnr']:.1f} dB"))
        if self.heatmap is not None:
            panels.append((self.heatmap, f"heatmap: {', '.join(old for old, _ in self.changes)}"))
        panels.append((self.edited, f"{self.method}: {self.target_prompt}"))
        longest, nearest = max(self.source.size), Image.Resampling.NEAREST
        side = longest * max(1, math.ceil(_SIDE / longest))
        text = max(14, side // 24)
        return picture_grid([panels], side=side, text=text, lines=12, resample=nearest)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, as JSON-able values."""
        return {
            "source_prompt": self.source_prompt,
            "target_prompt": self.target_prompt,
            "method": self.method,
            "changes": [list(change) for change in self.changes],
            "figures": {
                name: value if math.isfinite(value) else None
                for name, value in self.figures.items()
            },
            "warnings": list(self.warnings),
            **self.provenance,
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write source.png, reconstruction.png, edited.png, heatmap.png, compare.png, edit.json.

        Without a heatmap, one that an earlier edit left there is removed.
        """
        pictures = {
            "source": self.source,
            "reconstruction": self.reconstruction,
            "edited": self.edited,
            "heatmap": self.heatmap,
            "compare": self.compare(),
        }
        shown = {
            f"{name}.png": picture for name, picture in pictures.items() if picture is not None
        }
        with writing_folder(folder) as (target, final):
            for name, picture in shown.items():
                write_png(target / name, picture)
            write_json(target / "edit.json", self.to_dict())
        if "heatmap.png" not in shown:
            (final / "heatmap.png").unlink(missing_ok=True)
        return [final / name for name in (*shown, "edit.json")]
