"""Train a part of the lab: VAE, scene classifier, a family's denoiser, or CLIP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lab.clip import ClipStage
from lab.data import Bank
from lab.denoiser import DenoiserStage
from lab.families import FAMILIES
from lab.loop import Loop, Stage, Watch
from lab.recipe import complete
from lab.stages import ClassifierStage, VaeStage
from pixalign.backbones.load import resolve_device
from pixalign.backbones.locations import EMBEDDED
from pixalign.core.checks import check_choice

STAGES: dict[str, Callable[..., Stage]] = {
    "vae": VaeStage,
    "classifier": ClassifierStage,
    "clip": ClipStage,
}


def train(
    family: str,
    stage: str | None,
    out: Path,
    recipe: Mapping[str, Any],
    *,
    resume: Path | None = None,
    minutes: float | None = None,
    device: str = "cpu",
    vae: Path | None = None,
    bank: Path | None = None,
    banks: dict[int, Bank] | None = None,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Run a stage by a recipe merged over the defaults, and return its last figures.

    Without a ``stage`` it is the family's denoiser, or the whole of "clip". It stops at the
    recipe's last step or after ``minutes``, whichever is first, and can be resumed from
    ``resume`` (a checkpoint or a run's folder) or begun from a pipeline. sd1's denoiser needs a
    trained ``vae``; other families begin with the embedded model's VAE and words. Encoded scenes
    are kept for other runs in the folder ``bank``, or in ``banks``; ``watch`` is told each
    evaluation's step and figures.
    """
    begun = time.monotonic()
    check_choice("family", family, (*FAMILIES, "clip"))
    stage = stage or ("clip" if family == "clip" else "denoiser")
    if (family == "clip") != (stage == "clip"):
        raise ValueError(f"stage is {stage!r}; the family {family!r} has another")
    kind = FAMILIES.get(family)
    settings = complete(stage, *([kind.recipe] if kind and stage == "denoiser" else []), recipe)
    device = str(resolve_device(device))
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        torch.compiler.reset()  # graphs of an earlier run count against a limit
    torch.manual_seed(settings["seed"])
    part: Stage
    if kind is None or stage != "denoiser":
        part = STAGES[stage](settings, device)
    else:
        if family != "sd1":
            vae, resume = vae or EMBEDDED, resume or EMBEDDED
        if vae is None:
            raise ValueError("the denoiser needs a trained VAE: pass its folder as vae")
        part = DenoiserStage(settings, device, kind, vae, banks, bank)
    loop = Loop(part, settings, out, device)
    try:
        if resume is not None:
            loop.load(resume)
        (out / "recipe.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return loop.run(minutes, begun, watch)
    finally:
        part.close()
