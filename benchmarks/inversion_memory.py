"""The memory of null-text optimisation at a published size, with and without checkpointing.

``python benchmarks/inversion_memory.py --arch sd15`` needs a CUDA device: prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).parent))

from architectures import build

from pixalign.core.batching import BatchSize
from pixalign.core.provenance import device_name
from pixalign.diffusion.sampling import Sampler
from pixalign.editing import inversion
from pixalign.editing.inversion import InversionSettings, ddim_trajectory, null_text


def peak(model: Any, checkpointing: bool, steps: int) -> dict[str, float]:
    """GiB at the peak, and seconds for each of a step's optimisation steps."""
    backbone, settings = model.backbone, InversionSettings(steps=steps, tolerance=0, growth=0)
    sampler = Sampler(backbone, ["a photo of dog"], steps, settings.guidance, BatchSize())
    trajectory = ddim_trajectory(sampler, model.latents)
    kept = inversion.gradients_to_inputs
    if not checkpointing:
        inversion.gradients_to_inputs = lambda *_, **__: contextlib.nullcontext()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    try:
        null_text(sampler, trajectory, settings)
    finally:
        inversion.gradients_to_inputs = kept
    ended.record()
    torch.cuda.synchronize()
    inner = steps * settings.inner_steps
    return {
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "seconds_each": round(begun.elapsed_time(ended) / 1000 / inner, 4),
    }


def main(arch: str = "sd15", dtype: str = "float32", steps: int = 3) -> None:
    """Measure one picture."""
    if not torch.cuda.is_available():
        raise SystemExit("memory is measured on a CUDA device")
    model = build(arch, "cuda", dtype)
    peak(model, True, 1)  # libraries allocate their workspaces
    record = {
        "arch": arch,
        "dtype": dtype,
        "device": device_name(model.backbone.device),
        "checkpointing": peak(model, True, steps),
        "all_kept": peak(model, False, steps),
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    typer.run(main)
