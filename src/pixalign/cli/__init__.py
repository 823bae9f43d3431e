"""The ``pixalign`` command. Thin: it parses, calls, prints, and turns bad input into one line."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pixalign.cli.bench import bench
from pixalign.cli.common import Device, Json, print_json
from pixalign.cli.edit import edit
from pixalign.cli.generate import generate
from pixalign.cli.scenes import scenes

app = typer.Typer(
    help="Which pixels belong to which words, according to a text-to-image model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command()(generate)
app.command()(edit)
app.add_typer(bench, name="bench")
app.command()(scenes)


@app.command()
def segment(
    image: Annotated[str, typer.Argument(metavar="IMG", help="The picture.")],
    classes: Annotated[
        list[str],
        typer.Argument(
            metavar="CLASS...", help="What to look for. 'dog=a golden dog' names it dog."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Hub id or diffusers folder; see `pixalign models`.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="default, paper, official, fast or uncalibrated.")
    ] = "default",
    method: Annotated[
        str, typer.Option(help="elbo, or a baseline: daam, ovam, diffsegmenter, diffseg, diffpng.")
    ] = "elbo",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate a baseline's maps by the ELBO too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files. [default: IMG's name + -pixalign]")
    ] = None,
    caption: Annotated[
        str | None, typer.Option(help="A text that contains the classes, to read instead.")
    ] = None,
    resize: Annotated[
        Literal["square", "keep"] | None, typer.Option(help="Square, or keep the picture's shape.")
    ] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Strength: 1 is none, 1/3 the paper's.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Heatmaps below it are background, 0 to 1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    batch_size: Annotated[str, typer.Option(help="Passes at once: auto or a number.")] = "auto",
    memory: Annotated[str, typer.Option(help="normal, or low for smaller batches.")] = "normal",
    json_: Json = False,
) -> None:
    """Find classes in a picture: mask.png, heatmaps, overlay.png and result.json."""
    from pixalign.alignment.aligner import Aligner
    from pixalign.backbones.load import hide_loading_bars
    from pixalign.config import AlignConfig
    from pixalign.core.batching import BatchSize
    from pixalign.core.files import check_folder
    from pixalign.pictures.reading import read_image
    from pixalign.text.prompts import as_phrases, locate

    # Whatever is wrong is said before a model is loaded.
    _check_method(method, calibrate)
    chosen = {"resize": resize, "gamma": gamma, "threshold": threshold}
    overrides = {name: value for name, value in chosen.items() if value is not None}
    config = AlignConfig.preset(preset, **overrides)
    phrases = as_phrases([_phrase(text) for text in classes])
    if caption is not None:
        locate(phrases, caption)
    passes = int(batch_size) if batch_size.isdecimal() else batch_size
    BatchSize(passes, memory)
    read_image(image)
    folder = out or (None if json_ else Path(f"{Path(image).stem}-pixalign"))
    if folder is not None:
        check_folder(folder)
    if not sys.stderr.isatty():
        hide_loading_bars()
    how: dict[str, Any] = {"device": device, "dtype": dtype, "memory": memory}
    how |= {"config": config, "batch_size": passes, "progress": True}
    aligner = Aligner.from_pretrained(model, **how)
    result = _by_method(method, aligner, calibrate)(image, phrases, caption=caption, seed=seed)
    if folder is not None:
        result.save(folder)
    if json_:
        print_json(result.to_dict())
    else:
        _print_shares(result.to_dict())
        print(f"written to {folder}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and its pictures.")] = Path(
        "pixalign-demo"
    ),
    model: Annotated[str | None, typer.Option(help="Another model trained on scenes.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    device: Device = "auto",
) -> None:
    """Show the method at work, offline: maps before and after calibration, masks, a report."""
    from pixalign.backbones.load import hide_loading_bars
    from pixalign.core.files import check_folder
    from pixalign.scenes.demo import demo as run_demo

    check_folder(out)
    hide_loading_bars()
    report = run_demo(out, model=model, device=device, seed=seed)
    print(f"open {report}")


@app.command()
def models(json_: Json = False) -> None:
    """List the families that work, the lab's models and those in the local hub cache."""
    from pixalign.backbones.locations import lab_models
    from pixalign.cli.doctor import cached_models, families

    found: dict[str, Any] = {"lab": list(lab_models()), "cached": cached_models()}
    record = {"families": families(), **found}
    if json_:
        print_json(record)
        return
    print("Families (any diffusers pipeline of these, by hub id, folder or object):")
    for family in record["families"]:
        print(f"  {family['family']:<5} {family['description']}")
        for example in family["examples"]:
            print(f"        {example}")
    print(f"Small models trained on synthetic scenes: {', '.join(record['lab'])}")
    print("In the local hub cache:" if record["cached"] else "In the local hub cache: none")
    for entry in record["cached"]:
        print(f"  {entry['family']:<5} {entry['model']}")


@app.command()
def doctor(device: Device = "auto", json_: Json = False) -> None:
    """Say what device, number type, versions and models are usable."""
    from pixalign.cli.doctor import examine

    record = examine(device)
    if json_:
        print_json(record)
        return
    for name, version in record["versions"].items():
        print(f"{name:<13} {version}")
    for name, state in record["devices"].items():
        print(f"{name:<13} {state}")
    print(f"{'chosen':<13} {record['device']}")
    for family, dtype in record["dtypes"].items():
        print(f"{'':<13} {family} runs in {dtype}")
    for entry in record["cached"]:
        print(f"{'model':<13} {entry['model']} ({entry['family']})")
    if not record["cached"]:
        print(f"{'models':<13} none in the local hub cache")
    for problem in record["problems"]:
        print(f"problem: {problem}", file=sys.stderr)
    if not record["problems"]:
        print("All is well.")


def _check_method(method: str, calibrate: bool) -> None:
    from pixalign.core.checks import check_choice
    from pixalign.methods import METHODS

    usable = [name for name, kind in METHODS.items() if not kind.supervised]
    check_choice("method", method, ("elbo", *usable))
    if calibrate and method == "elbo":
        raise ValueError("--calibrate is for baselines; 'elbo' is calibrated by its preset")


def _by_method(method: str, aligner: Any, calibrate: bool) -> Any:
    """The ``align`` of the paper's method, or of a baseline."""
    from pixalign import methods as baselines

    if method == "elbo":
        return aligner.align
    return partial(baselines.method(method, aligner).align, calibrate=calibrate)


def _phrase(text: str) -> Any:
    from pixalign.core.values import Phrase

    name, separator, phrase = text.partition("=")
    if separator and not phrase.strip():
        raise ValueError(f"class {text!r} has nothing after '='")
    return Phrase(name, phrase)


def _print_shares(record: dict[str, Any]) -> None:
    names = [row["name"] for row in record["classes"]]
    width = max(map(len, [*names, "(background)"]))
    for row in record["classes"]:
        share, score = row["pixel_share"], row["score"]
        print(f"{row['name']:<{width}}  {share:6.1%} of the pixels  score {score:.3f}")
    print(f"{'(background)':<{width}}  {record['background_share']:6.1%} of the pixels")
    for warning in record["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)


def _quiet_libraries() -> None:
    """Libraries' chatter is not for the user of a command."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    warnings.filterwarnings("ignore", module="huggingface_hub")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def main() -> None:
    """Run ``pixalign``."""
    run_command(app, "pixalign")


def run_command(command: typer.Typer, name: str) -> None:
    """Run a command. Bad input ends with exit code 2 and one line on stderr."""
    _quiet_libraries()
    try:
        command()
    except (ValueError, OSError, ArithmeticError) as error:
        _fail(error, name)
    except RuntimeError as error:
        from pixalign.core.batching import out_of_memory

        if not out_of_memory(error):
            raise
        _fail(
            ValueError("out of memory with one pass at once; use a smaller model or device"), name
        )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def _fail(error: Exception, name: str) -> None:
    if os.environ.get("PIXALIGN_TRACEBACK"):
        raise error
    print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)
