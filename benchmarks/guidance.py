"""What is left of the ELBO where a network answers as if guided, as distilled ones do.

python benchmarks/guidance.py --model lab:sd2 --scenes 12 --guidance 1 3.5

Guidance is added to what the network estimates, exactly: no network is distilled here, so a real
one differs by what its training did not reach. Prints mIoU in percent, each row at its best
threshold, on test scenes of the lab.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

import pixalign as pa
from pixalign.backbones import Backbone
from pixalign.backbones.load import hide_loading_bars
from pixalign.bench.command import run_specs

SPEC = Path(__file__).with_suffix(".yaml")


class BuiltIn:
    """In the place of `Backbone.epsilon`: its estimates with guidance away from the empty text."""

    def __init__(self, backbone: Backbone, guidance: float) -> None:
        self.plain, self.guidance = backbone.epsilon, guidance
        self.away = backbone.unconditional()

    def __call__(self, z: Tensor, steps: Any, text: Any) -> Tensor:  # noqa: D102
        away = self.plain(z, steps, self.away.repeated(len(z)))
        return away + self.guidance * (self.plain(z, steps, text) - away)


def measured(model: str, guidance: float, scenes: int, device: str = "auto") -> dict[str, float]:
    """The mIoU in percent of each row of the spec."""
    loaded = pa.load(model, device=device)
    if guidance != 1:
        loaded.backbone.epsilon = BuiltIn(loaded.backbone, guidance)  # type: ignore[method-assign]
    with TemporaryDirectory() as folder:
        runs = run_specs([str(SPEC)], lambda _: loaded, limit=scenes, out=Path(folder))
        ((_, result),) = runs
    return {name: float(row["oracle"]["miou"]) for name, row in result["rows"].items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each guidance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="lab:sd2")
    parser.add_argument("--scenes", type=int, default=12)
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.0, 3.5])
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    hide_loading_bars()
    for guidance in given.guidance:
        rows = measured(given.model, guidance, given.scenes, given.device)
        print(f"guidance {guidance:g}: " + ", ".join(f"{n} {x:.1f}" for n, x in rows.items()))


if __name__ == "__main__":
    main()
