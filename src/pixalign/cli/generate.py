"""``pixalign generate``: pictures in which everything that the prompt names is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.cli.common import Device, Json, print_json, said_plainly


def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to draw.")],
    model: Annotated[
        str | None, typer.Option(help="Hub id, folder or lab:NAME. [default: the embedded model]")
    ] = None,
    method: Annotated[str, typer.Option(help="elbo, plain, attend-excite or syngen.")] = "elbo",
    entity: Annotated[
        list[str] | None,
        typer.Option(help="What must not be missing; repeatable. [default: found by spaCy]"),
    ] = None,
    non_entities: Annotated[
        Path | None, typer.Option(help="File of nouns that are no entities, instead of ours.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first picture's noise.", min=0)] = 0,
    count: Annotated[int, typer.Option(help="Pictures, of successive seeds.", min=1)] = 1,
    steps: Annotated[int, typer.Option(help="Denoising steps.", min=1)] = 50,
    guidance: Annotated[
        float | None, typer.Option(help="[default: the family's: 7.5, SDXL 5, SD3 7]")
    ] = None,
    strength: Annotated[
        float, typer.Option(help="The largest weight of an entity, 1/gamma.", min=1)
    ] = 1.2,
    active: Annotated[
        tuple[float, float], typer.Option(help="Part of the steps in which the method acts.")
    ] = (0.0, 1.0),
    size: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width. [default: native]")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also draw plainly from the same noise: compare.png.")
    ] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Plot the weights of the entities (needs matplotlib).")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("pixalign-pictures"),
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    batch_size: Annotated[str, typer.Option(help="Passes at once: auto or a number.")] = "auto",
    json_: Json = False,
) -> None:
    """Draw a prompt so that every entity it names appears, without training."""
    from pixalign import generation
    from pixalign.backbones.load import hide_loading_bars, opened
    from pixalign.core.checks import check_choice
    from pixalign.core.files import check_folder
    from pixalign.generation.plots import check_plots, plot_weights
    from pixalign.pictures.grid import picture_grid
    from pixalign.pictures.saving import write_png

    check_choice("method", method, tuple(generation.METHODS))
    check_folder(out)
    if plot:
        check_plots()
    options: dict[str, Any] = {"seed": seed, "count": count, "steps": steps, "size": size}
    options |= {"guidance": guidance, "strength": strength, "active": active, "progress": True}
    options["batch_size"] = int(batch_size) if batch_size.isdecimal() else batch_size
    named: dict[str, Any] = {"entities": entity or None}
    if non_entities is not None:
        named["ignored"] = generation.read_non_entities(non_entities)
    if not sys.stderr.isatty():
        hide_loading_bars()
    if generation.METHODS[method].reads_entities:  # errors in words come before the weights
        generation.entities_in([prompt], **named)
    options["model"] = opened(model, device, dtype)
    with said_plainly():
        made = generation.generate(prompt, method=method, **named, **options)
    for one in made:
        one.save(out)
    for one in made if plot else ():
        if one.entities:
            plot_weights(one, out / f"{one.name}-weights.png")
    if compare:
        plain = generation.generate(prompt, method="plain", **options)
        rows = [(before.image, after.image) for before, after in zip(plain, made, strict=True)]
        titles = [f"{prompt} · seed {one.seed}" for one in made]
        grid = picture_grid(rows, headings=("plain", method), titles=titles, side=256)
        write_png(out / "compare.png", grid)
    if json_:
        print_json([one.to_dict() for one in made])
    else:
        for one in made:
            print(_described(one))
        print(f"written to {out}")


def _described(made: Any) -> str:
    """A picture's file and the mean weight of each entity."""
    means = made.weights.mean(0)
    words = [f"{e.text} {w:.2f}" for e, w in zip(made.entities, means, strict=True)]
    return f"{made.name}.png" + (f"  mean weights: {', '.join(words)}" if words else "")
