"""Which recipe makes attention localise? Trains denoiser recipes for a few minutes each.

python benchmarks/lab_ablations.py --vae RUN --minutes-each 3 --out DIR lab/recipes/ablations/*.json

All recipes share one bank of encoded scenes where their bank and size agree. DIR/NAME.json holds
a recipe's gates at every evaluation and is rewritten at each, so nothing is lost when the run is
killed; a table of the last gates is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lab.data import Bank
from lab.denoiser import DenoiserStage
from lab.families import FAMILIES
from lab.recipe import complete, read_recipe
from lab.train import train


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the recipes one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--minutes-each", type=float, default=3.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--every", type=int, default=1000, help="steps between gates")
    parser.add_argument("--bank", type=int, default=200_000, help="encoded scenes")
    parser.add_argument("--steps", type=int, default=1_000_000, help="at most")
    args = parser.parse_args(arguments)

    for path in args.recipes:
        complete("denoiser", read_recipe(path))  # a bad one is said before the first runs
    banks: dict[int, dict[int, Bank]] = {}
    for path in args.recipes:
        recipe = read_recipe(path)
        # The rate stays constant, so that a step means the same in every run.
        recipe |= {"decay": "constant", "evaluate_every": args.every, "steps": args.steps}
        recipe |= {"checkpoint_minutes": 1e9, "sheet_every": 1_000_000_000}
        recipe["bank"] = {**recipe.get("bank", {}), "count": args.bank, "refresh": 0}
        whole = complete("denoiser", recipe)
        shared = banks.setdefault(whole["size"], {})
        if not shared:  # outside the clock of the first recipe
            DenoiserStage(whole, args.device, FAMILIES["sd1"], args.vae, shared).bank(0)
        begun, rows = time.monotonic(), []

        def watch(step: int, figures: dict[str, Any]) -> None:
            minutes = round((time.monotonic() - begun) / 60, 3)  # noqa: B023
            rows.append({"step": step, "minutes": minutes, **figures})  # noqa: B023
            _write({"recipe": recipe, "gates": rows}, args.out / f"{path.stem}.json")  # noqa: B023

        print(f"==== {path.stem}", flush=True)
        try:
            train(
                "sd1",
                "denoiser",
                args.out / path.stem,
                recipe,
                minutes=args.minutes_each,
                device=args.device,
                vae=args.vae,
                banks=shared,
                watch=watch,
            )
        except (RuntimeError, ValueError, FloatingPointError) as error:
            print(f"{path.stem} failed: {error}", flush=True)  # the others still run
    summarise(args.out)


def summarise(folder: Path) -> None:
    """Print each recipe's steps and last gates at the first position."""
    print(f"{'recipe':<22} {'steps':>6} {'best':>9} {'other':>6} {'all':>6} {'sink':>5} pointing")
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))["gates"][-1]
        sink = next(iter(row["layers"][row["best"]].values()))["sink"]
        print(
            f"{path.stem:<22} {row['step']:>6} {row['best']:>9} {row['auc_other_best']:>6.3f} "
            f"{row['auc_other_all']:>6.3f} {sink:>5.2f} {row['pointing_first']:.2f}"
        )


def _write(value: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


if __name__ == "__main__":
    main()
