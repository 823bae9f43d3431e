"""``pixalign demo``: the method at work, offline."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pixalign.cli.common import Device, Model, Seed, load_model


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and its pictures.")] = Path(
        "pixalign-demo"
    ),
    model: Model = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Show the method at work, offline: maps before and after calibration, masks, a report."""
    from pixalign.backbones.load import hide_loading_bars
    from pixalign.core.files import check_folder
    from pixalign.scenes.demo import demo as run_demo

    check_folder(out)
    hide_loading_bars()
    loaded = load_model(model, device, progress=False)
    report = run_demo(loaded, out, seed=seed, command=command(out, model, seed, device))
    print(f"open {report}")


def command(out: Path, model: str | None, seed: int, device: str) -> str:
    """What makes the same again."""
    words = ["pixalign", "demo", "--out", str(out), "--seed", str(seed)]
    words += ["--model", model] if model is not None else []
    words += ["--device", device] if device != "auto" else []
    return shlex.join(words)
