"""The memory of null-text optimisation at a published size, with and without checkpointing.

``python benchmarks/inversion_memory.py --arch sd15`` needs a CUDA device: prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from architectures import build

from pixalign.core.provenance import device_name
from pixalign.editing import inversion
from pixalign.editing.inversion import InversionSettings, invert, null_text


def peak(model: Any, checkpointing: bool, steps: int) -> dict[str, float]:
    """GiB at the peak, and seconds for each of a step's optimisation steps."""
    backbone, settings = model.backbone, InversionSettings(steps=steps, tolerance=0, growth=0)
    texts = backbone.encode_text(["a photo of dog"])
    path = backbone.schedule.path(steps)
    trajectory = invert(backbone, model.latents, texts, path)
    kept = inversion.gradients_to_inputs
    if not checkpointing:
        inversion.gradients_to_inputs = lambda *_, **__: contextlib.nullcontext()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    try:
        null_text(backbone, trajectory, texts, path, settings)
    finally:
        inversion.gradients_to_inputs = kept
    ended.record()
    torch.cuda.synchronize()
    inner = steps * settings.inner_steps
    return {
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "seconds_each": round(begun.elapsed_time(ended) / 1000 / inner, 4),
    }


def main() -> None:
    """Measure one picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="sd15")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("memory is measured on a CUDA device")
    model = build(args.arch, "cuda", args.dtype)
    peak(model, True, 1)  # libraries allocate their workspaces
    found = {
        "arch": args.arch,
        "dtype": args.dtype,
        "device": device_name(model.backbone.device),
        "checkpointing": peak(model, True, args.steps),
        "all_kept": peak(model, False, args.steps),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
