"""``python -m lab``: small models trained on synthetic scenes, and what they teach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.cli.common import Device, Json, print_json

lab = typer.Typer(
    help="Small models trained on synthetic scenes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@lab.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder for log, checkpoints and the model.")],
    family: Annotated[str, typer.Option(help="sd1, sd2, sdxl, sd3 or clip.")] = "sd1",
    stage: Annotated[
        str | None,
        typer.Option(help="vae, classifier or denoiser. [default: denoiser; clip has but one]"),
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="JSON file; see recipes/.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Run folder or weights to go on from.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes.")] = None,
    vae: Annotated[
        Path | None, typer.Option(help="Trained VAE. [default: the embedded one, but for sd1]")
    ] = None,
    bank: Annotated[
        Path | None, typer.Option(help="Folder that keeps encoded scenes for other runs.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Train a small model on scenes, or one of its parts."""
    from lab.train import train_command

    train_command(family, stage, out, recipe, resume, minutes, device, vae, bank)


@lab.command()
def gates(
    model: Annotated[
        Path, typer.Option(help="Folder of a pipeline trained on scenes, or lab:NAME.")
    ],
    scenes: Annotated[int, typer.Option(help="Val scenes with 2 to 4 objects.", min=3)] = 128,
    single: Annotated[int, typer.Option(help="Val scenes with one object.", min=1)] = 64,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Say how well a model's cross-attention finds objects, layer by layer."""
    from lab.attention import judge, table

    result = judge(model, scenes, single, device)
    if json_:
        print_json(result)
    else:
        print(table(result))


@lab.command()
def choose(
    model: Annotated[
        Path | None, typer.Option(help="Folder or lab:NAME; the embedded one if left out.")
    ] = None,
    count: Annotated[int, typer.Option(help="Val scenes.", min=3)] = 300,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Choose a model's layers, collecting range, gamma and thresholds on val; write them to it."""
    from lab.tune import choose_for

    found = choose_for(model, count, device)
    print_json(found if json_ else found["settings"])


@lab.command()
def study(
    split: Annotated[str, typer.Option(help="val or test.")] = "test",
    count: Annotated[int, typer.Option(help="Scenes of 2 to 4 objects.", min=3)] = 1200,
    limit: Annotated[
        int | None,
        typer.Option(help="At most so many scenes, a third at each stress level.", min=3),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder or lab:NAME; the embedded one if left out.")
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="Result of a val study: fix each variant's threshold by it.")
    ] = None,
    parts: Annotated[str, typer.Option(help="Some of these.")] = "main,gamma,sweeps,stress",
    out: Annotated[
        Path | None, typer.Option(help="File for the result; beside it, a stopped run is kept.")
    ] = None,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Compare presets, controls and sweeps on scenes whose truth is known."""
    from lab.study import kept_study, study_of
    from lab.summary import table
    from pixalign.backbones.load import hide_loading_bars

    hide_loading_bars()
    asked = (model, split, min(count, limit or count))
    options: dict[str, Any] = {
        "device": device,
        "reference": thresholds,
        "parts": parts.split(","),
        "stress_scenes": max(1, limit // 3) if limit else 60,
    }
    result = study_of(*asked, **options) if out is None else kept_study(*asked, out, **options)
    if json_:
        print_json(result)
    else:
        print(table(result))


@lab.command()
def families(
    out: Annotated[Path, typer.Option(help="Folder for a result file of each family.")],
    count: Annotated[int, typer.Option(help="Test scenes of 2 to 4 objects.", min=3)] = 1002,
    model: Annotated[
        list[str] | None, typer.Option(help="Only lab:NAME; repeatable. [default: all]")
    ] = None,
    device: Device = "auto",
) -> None:
    """Compare the lab's families before and after calibration; finished ones are not run again."""
    from lab.compare import compare, table
    from pixalign.backbones.load import hide_loading_bars

    hide_loading_bars()
    print(table(compare(out, count, model or None, device)))


@lab.command()
def report(
    docs: Annotated[Path, typer.Option(help="Folder with the templates and results.")] = Path(
        "docs"
    ),
) -> None:
    """Render docs/lab.md with its figures, generation.md and editing.md from the result files."""
    from lab.document import report as render_report

    for path in render_report(docs):
        print(f"written to {path}")


if __name__ == "__main__":
    from pixalign.cli import run_command

    run_command(lab, "lab")
