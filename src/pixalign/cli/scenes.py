"""``pixalign scenes`` and ``demo``: scenes with exact truth, and the method at work on them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from pixalign.backbones.locations import lab_models
from pixalign.cli.common import Device, Model, Seed, load_model, one_of, option
from pixalign.scenes.sample import SPLITS

DEMO_MODEL = "lab:sd2"


def scenes(
    out: Annotated[Path, option("Folder for the files.")],
    split: Annotated[
        str, option("Which split: its class frequencies and scene numbers.", **one_of(SPLITS))
    ] = "test",
    count: Annotated[int, option("How many scenes.", min=1)] = 8,
    start: Annotated[int, option("Number of the first scene.", min=0)] = 0,
    size: Annotated[int, option("Pixels on a side.", min=32)] = 256,
) -> None:
    """Write scenes with exact masks, captions and boxes, and a sheet to look at."""
    from pixalign.scenes.write import write_scenes

    written = write_scenes(split, count, out, start=start, size=size)
    print(f"{len(written)} files written to {out}")


def demo(
    out: Annotated[Path, option("Folder for the report and its pictures.")] = Path("pixalign-demo"),
    model: Model = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Show the method at work, offline: maps before and after, masks, a report.

    In a checkout by lab:sd2, whose attention leaves more to do; elsewhere by the embedded model.
    """
    from pixalign.core.files import check_folder
    from pixalign.scenes.demo import demo as run_demo

    check_folder(out)
    if model is None and DEMO_MODEL in lab_models():
        model = DEMO_MODEL
    loaded = load_model(model, device, progress=False)
    again = ["pixalign", "demo", "--out", str(out), "--seed", str(seed)]
    again += ["--model", model] if model is not None else []
    again += ["--device", device] if device != "auto" else []
    print(f"open {run_demo(loaded, out, seed=seed, command=shlex.join(again))}")
