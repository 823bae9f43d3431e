"""``python -m lab``: small models trained on synthetic scenes, and what they teach."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from lab.editing import ROWS, format_edits, run_editing_study
from lab.generation import FIGURES, LAB_SETS, study_generation
from pixalign.bench.generation_study import format_generation
from pixalign.cli.common import (
    Device,
    Dtype,
    Json,
    Model,
    Steps,
    load_model,
    one_of,
    option,
    print_json,
)

lab = typer.Typer(
    help="Small models trained on synthetic scenes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Family = Literal["sd1", "sd2", "sdxl", "sd3", "flux", "clip"]
Stage = Literal["vae", "classifier", "denoiser", "clip"]


@lab.command()
def train(
    out: Annotated[Path, option("Folder for log, checkpoints and the model.")],
    family: Annotated[Family, option("What is trained.")] = "sd1",
    stage: Annotated[
        Stage | None, option("Which part.", show_default="denoiser; clip has but one")
    ] = None,
    recipe: Annotated[Path | None, option("JSON file; see lab/recipes.")] = None,
    resume: Annotated[Path | None, option("Run folder or weights to go on from.")] = None,
    minutes: Annotated[float | None, option("Stop after so many minutes.")] = None,
    vae: Annotated[
        Path | None, option("Trained VAE.", show_default="the embedded one; sd1 needs it")
    ] = None,
    bank: Annotated[Path | None, option("Folder that keeps encoded scenes for other runs.")] = None,
    device: Device = "auto",
) -> None:
    """Train a small model on scenes, or one of its parts."""
    from lab.recipe import read_recipe
    from lab.train import train as run

    options: dict[str, Any] = {"resume": resume, "minutes": minutes, "vae": vae, "bank": bank}
    run(family, stage, out, read_recipe(recipe), device=device, **options)


@lab.command()
def attention(
    model: Annotated[str, option("Folder of a pipeline, or lab:NAME.")],
    scenes: Annotated[int, option("Val scenes with 2 to 4 objects.", min=3)] = 128,
    single: Annotated[int, option("Val scenes with one object.", min=1)] = 64,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Say how well a model's cross-attention finds objects, layer by layer."""
    from lab.attention import evaluate_gates, format_gates

    gates = evaluate_gates(model, scenes, single, device)
    if json_:
        print_json(gates)
    else:
        print(format_gates(gates))


@lab.command()
def tune(
    model: Annotated[
        str | None, option("Folder or lab:NAME.", show_default="the embedded one")
    ] = None,
    count: Annotated[int, option("Val scenes.", min=3)] = 300,
    keep: Annotated[
        bool, option("Keep layers, range and gamma; fit thresholds and temperatures alone.")
    ] = False,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Choose a model's layers, collecting range, gamma and thresholds on val; write them to it."""
    from lab.tune import tune_model

    record = tune_model(model, count, device, keep=keep)
    print_json(record if json_ else record["settings"])


@lab.command()
def trust(
    out: Annotated[Path, option("Folder for one JSON file a model.")],
    model: Annotated[list[str] | None, option("lab:NAME; repeatable.", show_default="all")] = None,
    scenes: Annotated[int, option("Test scenes.", min=1)] = 60,
    ranked: Annotated[int, option("Scenes that are asked for all 111 classes.", min=0)] = 20,
    device: Device = "auto",
) -> None:
    """Measure verdicts, absent names, rankings and probabilities on test scenes."""
    from lab.study import FAMILIES
    from lab.trust import study_trust
    from pixalign.core.files import make_folder, write_json

    for name in model or ["lab:sd1", *FAMILIES]:
        path = make_folder(out) / f"{name.removeprefix('lab:')}.json"
        record = study_trust(name, scenes, ranked, device, save=partial(write_json, path))
        print_json({key: value for key, value in record.items() if key != "reliability"})


@lab.command()
def audit(
    out: Annotated[Path, option("Folder for one JSON file a model.")],
    model: Annotated[list[str] | None, option("lab:NAME; repeatable.", show_default="four")] = None,
    val: Annotated[int, option("Val scenes, of which a score is chosen.", min=0)] = 120,
    test: Annotated[int, option("Test scenes.", min=0)] = 120,
    prompts: Annotated[int, option("Prompts of bare nouns that are drawn.", min=0)] = 48,
    coloured: Annotated[int, option("Prompts with colours that are drawn.", min=0)] = 48,
    steps: Steps = 20,
    early: Annotated[
        Path | None, option("Pipeline of an early checkpoint of lab:flux: compare these two alone.")
    ] = None,
    work: Annotated[Path | None, option("Folder that keeps the audits, to go on from.")] = None,
) -> None:
    """See whether audits are right: rankings without masks, neglected objects, checkpoints."""
    from lab.audit import MODELS, study_audit, study_checkpoint
    from pixalign.core.files import make_folder, write_json

    if early is not None:
        with TemporaryDirectory() as passing:
            record = study_checkpoint(early, test, work or Path(passing), show=True)
        write_json(make_folder(out) / "checkpoint.json", record)
        print_json(record)
        return
    for name in model or MODELS:
        counts = {"lab-pairs": prompts, "lab-attributes": coloured}
        record = study_audit(name, val, test, counts, steps, work)
        write_json(make_folder(out) / f"{name.removeprefix('lab:')}.json", record)
        print_json(record)


@lab.command()
def quality(
    pipeline: Annotated[str, option("Folder of a pipeline, or lab:NAME.")],
    classifier: Annotated[Path, option("Folder of a trained classifier.")],
    out: Annotated[Path, option("Folder for quality.json and classes.png.")],
    per_class: Annotated[int, option("Pictures of each class.", min=1)] = 8,
    steps: Annotated[int, option("Sampling steps.", min=1)] = 30,
    guidance: Annotated[float, option("Strength of guidance.")] = 4.0,
    device: Device = "auto",
) -> None:
    """Say how often the classifier finds the object that a picture was drawn of."""
    from lab.evaluate import evaluate_quality

    options: dict[str, Any] = {"steps": steps, "guidance": guidance, "device": device}
    print_json(evaluate_quality(pipeline, classifier, out, per_class=per_class, **options))


@lab.command()
def generation(
    out: Annotated[Path, option("Folder for the result file and the pictures.")],
    model: Model = None,
    set_: Annotated[
        list[str] | None,
        option("Prompts; repeatable.", "--set", show_default="all", **one_of(LAB_SETS)),
    ] = None,
    prompts: Annotated[int, option("The first so many of each set.", min=2)] = 70,
    seeds: Annotated[int, option("Pictures of each prompt.", min=1)] = 2,
    steps: Steps = 50,
    controls: Annotated[
        bool, option("Also draw with other strengths and orders of the weights.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Draw prompts of the lab's classes by every method, and see which objects are there."""
    loaded = load_model(model, device, dtype)
    options: dict[str, Any] = {"prompts": prompts, "seeds": seeds, "steps": steps}
    options |= {"sets": set_ or tuple(LAB_SETS), "controls": controls}
    print(format_generation(study_generation(loaded, out, **options), FIGURES))


@lab.command()
def editing(
    out: Annotated[Path, option("Folder for the result file and the pictures.")],
    model: Model = None,
    count: Annotated[int, option("Edits of test scenes.", min=2)] = 104,
    row: Annotated[
        list[str] | None, option("What to compare; repeatable.", show_default="all", **one_of(ROWS))
    ] = None,
    steps: Steps = 50,
    device: Device = "auto",
) -> None:
    """Turn objects of scenes into others, and see whether it happened, and only there."""
    loaded = load_model(model, device, "float32")
    options: dict[str, Any] = {"count": count, "steps": steps, "rows": row or tuple(ROWS)}
    print(format_edits(run_editing_study(loaded, out, **options)))


@lab.command()
def synthetic(
    out: Annotated[Path, option("Folder for one JSON file a model.")],
    model: Annotated[list[str] | None, option("lab:NAME; repeatable.")] = None,
    set_: Annotated[
        list[str] | None,
        option("Prompts; repeatable.", "--set", show_default="all", **one_of(LAB_SETS)),
    ] = None,
    prompts: Annotated[int, option("The first so many of each set.", min=1)] = 222,
    steps: Steps = 50,
    device: Device = "auto",
) -> None:
    """Draw pictures, annotate them, and say which masks are right and whether trust tells."""
    from lab.synthetic import format_synthetic, study_synthetic

    for name in model or ["lab:sd1", "lab:sd2"]:
        loaded = load_model(name, device, "float32")
        options: dict[str, Any] = {"prompts": prompts, "steps": steps}
        summary = study_synthetic(loaded, out, sets=set_ or tuple(LAB_SETS), **options)
        print(f"{name}: {format_synthetic(summary)}")


@lab.command()
def study(
    only: Annotated[
        list[str] | None,
        option("Runs such as 'study-exponents/lab:sd2' or 'study-*/embedded'."),
    ] = None,
    limit: Annotated[int | None, option("At most so many scenes.", min=1)] = None,
    out: Annotated[Path, option("Folder for the results.")] = Path("runs/study"),
    device: Device = "auto",
) -> None:
    """Compare exponents, presets and timesteps on scenes whose truth is known; goes on if stopped.

    docs/lab.md is rendered from the result.json of each run, in docs/lab/study.
    """
    from lab.study import run_study

    for folder, result in run_study(out, only=only or (), limit=limit, device=device):
        print(f"{folder}: {result['done']} images, {result['seconds_per_image']} s each")


@lab.command()
def report(
    docs: Annotated[Path, option("Folder with the templates and results.")] = Path("docs"),
) -> None:
    """Render docs/lab.md with its figures, generation.md and editing.md from the result files."""
    from lab.report import report as render_report

    for path in render_report(docs):
        print(f"written to {path}")


if __name__ == "__main__":
    from pixalign.cli import run_command

    run_command(lab, "lab")
