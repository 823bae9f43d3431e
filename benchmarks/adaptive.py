"""How many ELBO passes does calibration need? Forwards against mIoU on the lab's scenes.

python benchmarks/adaptive.py --split test --count 600 --device auto --out adaptive.json

Every scene is measured once with the full budget; what stopping early would have done is computed
from the same losses, by the functions that the library uses. Fixed smaller budgets (the first
stages for every image) stand beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pixalign as pa
from lab.measured import scene_attention, scene_groups, scene_losses
from pixalign.alignment.adaptive import expected_change, stages
from pixalign.alignment.calibrate import alignment_scores, exponents
from pixalign.alignment.heatmaps import heatmaps_under
from pixalign.backbones.load import hide_loading_bars
from pixalign.bench.metrics import Tally, bootstrap_weights, figures, interval, tally
from pixalign.config import AlignConfig
from pixalign.core.files import write_json
from pixalign.core.provenance import device_name

TOLERANCES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


def powers_after(losses: Tensor, budget: Any, config: AlignConfig) -> tuple[Tensor, int]:
    """Exponents [N] and passes a class took: ``budget`` is a tolerance, or a number of stages."""
    assert config.gamma is not None
    weights = torch.ones(losses.shape[1], dtype=torch.float64)  # every step alike
    seen: list[int] = []
    plan = stages(losses.shape[1], config.elbo_stage)
    for done, stage in enumerate(plan, 1):
        seen += stage
        if isinstance(budget, int):
            if done == budget:
                break
        elif (
            expected_change(losses[:, seen], weights[seen], config.gamma, bool(config.centred))
            < budget
        ):
            break
    bounds = losses[:, sorted(seen)].double().mean(1)
    return exponents(alignment_scores(bounds, config.gamma), bool(config.centred)), len(seen)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="test", choices=("val", "test"))
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gamma", type=float, help="instead of the model's own, uncentred")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    hide_loading_bars()
    model = pa.load(device=args.device, dtype="float32")
    changes = {"gamma": args.gamma, "centred": False} if args.gamma else {}
    config = model.resolve(AlignConfig(**changes))
    budgets: dict[str, Any] = {"full": len(stages(config.elbo_steps, config.elbo_stage))}
    budgets |= {f"{config.elbo_stage * n} steps": n for n in (1, 2, 3)}
    budgets |= {f"tolerance {t:g}": t for t in TOLERANCES}
    tallies: dict[str, list[Tally]] = {name: [] for name in ("uncalibrated", *budgets)}
    used = dict.fromkeys(budgets, 0)
    images = 0
    for group, latents in scene_groups(model, args.split, args.count):
        maps = scene_attention(model, group, latents, config)
        measured = scene_losses(model, group, latents, config)
        for subject, attention, losses in zip(group, maps, measured, strict=True):
            chosen = {n: powers_after(losses, b, config) for n, b in budgets.items()}
            rows = torch.stack([torch.ones(len(losses)), *(p for p, _ in chosen.values())])
            heatmaps = heatmaps_under(attention, config.cross_weights, rows, subject.size)
            labels = [label + 1 for label in subject.labels]
            counted = tally(heatmaps, subject.truth, labels, subject.index)
            for name, row in zip(tallies, counted, strict=True):
                tallies[name].append(row)
            for name, (_, steps) in chosen.items():
                used[name] += steps * len(losses)
        images += len(group)
    result = summary(tallies, used, images)
    result |= {"split": args.split, "device": device_name(model.backbone.device)}
    result |= {"gamma": config.gamma, "centred": config.centred}
    if args.out:
        write_json(args.out, result)
    for name, row in result["rows"].items():
        ends = "{low:+.2f} to {high:+.2f}".format(**row["minus_full"])
        fewer = f"{row['fewer']:.2f} x fewer" if row["fewer"] else ""
        print(f"{name:<16} mIoU {row['miou']:.2f}  minus full {ends:<18} {fewer}")
    return result


def summary(tallies: dict[str, list[Tally]], used: dict[str, int], images: int) -> dict[str, Any]:
    """mIoU of every budget, its paired difference to the full one, and how many passes it saves."""
    weights = bootstrap_weights(images, 1000)
    made = {name: figures(Tally.concatenate(rows), weights, None) for name, rows in tallies.items()}
    full, drawn = made["full"]
    rows = {}
    for name, (row, values) in made.items():
        low, high = interval(values - drawn)
        rows[name] = {
            "miou": round(row.miou, 3),
            "minus_full": {
                "value": round(row.miou - full.miou, 3),
                "low": round(low, 3),
                "high": round(high, 3),
            },
            "fewer": round(used["full"] / used[name], 3) if name in used else None,
        }
    return {"images": images, "rows": rows}


if __name__ == "__main__":
    main()
