"""Is the method generic? The same study on every family of the lab."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.study import kept_study
from pixalign.backbones.load import family_of_folder
from pixalign.backbones.locations import LAB, lab_folder, lab_models

PARTS = ("main", "gamma", "sweeps")
CONTROLS = ("random", "reversed", "default-3", "random-3")


def compare(
    out: Path,
    count: int,
    names: Sequence[str] | None = None,
    device: str = "auto",
    *,
    show: bool = True,
) -> dict[str, Any]:
    """Results by short name, in ``out``/NAME.json; a family that has one of as many scenes is kept.

    A stopped run goes on with the scene where it was.
    """
    chosen = list(names) if names else list(lab_models())
    folders = {name: lab_folder(name) for name in chosen}
    for name, folder in folders.items():
        if family_of_folder(folder) is None:
            raise ValueError(f"{name!r} is no text-to-image model")
    found = {}
    for name in chosen:
        short = name.removeprefix(LAB)
        path = out / f"{short}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if known.get("images") != count:
            known = kept_study(name, "test", count, path, device=device, parts=PARTS, show=show)
        found[short] = known
    return found


def table(results: Mapping[str, Any]) -> str:
    """mIoU of each family without calibration, and what calibration and its controls change."""
    lines = [f"{'':<6}{'uncalibrated':>22}" + "".join(f"{n:>26}" for n in ("own", *CONTROLS))]
    for name, result in results.items():
        variants = result["variants"]
        plain = variants["uncalibrated"]["oracle"]
        cells = [f"{plain['miou']:.1f} ({plain['miou_low']:.1f} to {plain['miou_high']:.1f})"]
        for variant in ("default", *CONTROLS):
            one = variants[variant]["oracle"]["minus_uncalibrated"]
            cells.append(f"{one['value']:+.2f} ({one['low']:+.2f} to {one['high']:+.2f})")
        lines.append(f"{name:<6}{cells[0]:>22}" + "".join(f"{cell:>26}" for cell in cells[1:]))
    images = {result["images"] for result in results.values()}
    scenes = " or ".join(map(str, sorted(images)))
    lines.append(f"mIoU in percent at the best threshold, 95 % intervals, {scenes} test scenes")
    return "\n".join(lines)
