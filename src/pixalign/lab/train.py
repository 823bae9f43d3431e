"""Train a stage of the lab: ``python -m pixalign.lab.train --stage vae --out DIR``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pixalign.backbones.load import resolve_device
from pixalign.lab.data import Bank
from pixalign.lab.loop import Loop, Stage, Watch
from pixalign.lab.recipes import DEFAULTS, complete, read_recipe
from pixalign.lab.stages import ClassifierStage, DenoiserStage, VaeStage
from pixalign.types import allowed

FAMILIES = ("sd1",)


def train(
    family: str,
    stage: str,
    out: Path,
    recipe: Mapping[str, Any],
    *,
    resume: Path | None = None,
    minutes: float | None = None,
    device: str = "cpu",
    vae: Path | None = None,
    banks: dict[int, Bank] | None = None,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Run a stage by a recipe merged over the defaults, and return its last figures.

    It stops at the recipe's last step or after ``minutes``, whichever is first, and can be
    resumed from ``resume`` (a checkpoint or a run's folder). The denoiser needs a trained
    ``vae``; ``banks`` shares encoded scenes between runs; ``watch`` is
    told each evaluation's step and figures.
    """
    begun = time.monotonic()
    allowed("family", family, FAMILIES)
    settings = complete(stage, recipe)
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        torch.compiler.reset()  # graphs of an earlier run count against a limit
    torch.manual_seed(settings["seed"])
    part: Stage
    if stage == "vae":
        part = VaeStage(settings, device)
    elif stage == "classifier":
        part = ClassifierStage(settings, device)
    else:
        if vae is None:
            raise ValueError("the denoiser needs a trained VAE: pass its folder as vae")
        part = DenoiserStage(settings, device, vae, banks)
    loop = Loop(part, settings, out, device)
    try:
        if resume is not None:
            loop.load(resume)
        (out / "recipe.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return loop.run(minutes, begun, watch)
    finally:
        part.close()


def train_command(
    family: str,
    stage: str,
    out: Path,
    recipe: Path | None,
    resume: Path | None,
    minutes: float | None,
    device: str,
    vae: Path | None,
) -> None:
    """What the shell calls: the recipe is a file, and "auto" is CUDA where there is one."""
    device = str(resolve_device(device))
    changes = read_recipe(recipe)
    train(family, stage, out, changes, resume=resume, minutes=minutes, device=device, vae=vae)


def main() -> None:
    """Parse the arguments of ``python -m pixalign.lab.train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="sd1", choices=FAMILIES)
    parser.add_argument("--stage", required=True, choices=tuple(DEFAULTS))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--recipe", type=Path, help="a file of recipes/")
    parser.add_argument("--resume", type=Path, help="a checkpoint, weights.pt or a run's folder")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vae", type=Path, help="the folder of a trained VAE")
    train_command(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
