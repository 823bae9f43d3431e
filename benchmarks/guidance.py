"""What is left of the ELBO where a network answers as if guided, as distilled ones do.

python benchmarks/guidance.py --model lab:sd2 --scenes 12 --guidance 1 3.5
python benchmarks/guidance.py --scenes 24 --guidance 1 --distilled runs/guided/pipeline

Guidance is added to what the network estimates, exactly. A network that has learnt to answer with
guidance (--distilled) is told to how much of it its training came. Prints mIoU in percent, each row
at its best threshold, on test scenes of the lab.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import pixalign as pa
from pixalign.alignment.request import encode_image
from pixalign.backbones import Backbone
from pixalign.backbones.load import hide_loading_bars
from pixalign.bench.command import run_specs
from pixalign.bench.datasets import open_dataset
from pixalign.bench.subject import Subject

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


@torch.no_grad()
def reached(model: str, distilled: str, scenes: int, device: str = "auto") -> float:
    """The guidance with which a distilled network answers: w of least squares in
    answer = away + w (towards - away), of what the model says, over scenes and noise levels."""
    first, second = (pa.load(name, device=device).backbone for name in (model, distilled))
    dataset = open_dataset("lab", None, "test", scenes)
    generator = torch.Generator().manual_seed(0)
    along = squares = 0.0
    for number in range(scenes):
        subject = Subject(dataset[number], number, dataset.classes, 0)
        z = encode_image(first, subject.sample.image, "square").latents
        text = "a photo of " + ", ".join(phrase.phrase for phrase in subject.phrases)
        for place in (0.1, 0.3, 0.5, 0.7, 0.9):
            steps = first.schedule.at_positions(torch.tensor([place]))
            noised = steps.noised(z, torch.randn(z.shape, generator=generator).to(z.device))
            towards, away, answer = (
                backbone.epsilon(noised, steps, backbone.encode_text([shown]))
                for backbone, shown in ((first, text), (first, ""), (second, text))
            )
            along += float(((answer - away) * (towards - away)).sum())
            squares += float((towards - away).square().sum())
    return along / squares


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each guidance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="lab:sd2")
    parser.add_argument("--scenes", type=int, default=12)
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.0, 3.5])
    parser.add_argument("--distilled", help="pipeline that has learnt to answer with guidance")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    hide_loading_bars()
    for guidance in given.guidance:
        rows = measured(given.model, guidance, given.scenes, given.device)
        print(f"guidance {guidance:g}: {_line(rows)}")
    if given.distilled:
        rows = measured(given.distilled, 1, given.scenes, given.device)
        guidance = reached(given.model, given.distilled, given.scenes, given.device)
        print(f"distilled, answers with guidance {guidance:.2f}: {_line(rows)}")


def _line(rows: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {miou:.1f}" for name, miou in rows.items())


if __name__ == "__main__":
    main()
