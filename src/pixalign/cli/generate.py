"""``pixalign generate``: pictures in which everything that the prompt names is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.cli import common
from pixalign.cli.common import one_of, option
from pixalign.core.checks import check_seed
from pixalign.generation import GENERATION_METHODS, entities_in, read_non_entities
from pixalign.generation.plan import GenerationSettings
from pixalign.text.prompts import check_prompt


def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to draw.")],
    model: common.Model = None,
    method: Annotated[
        str, option("How missing objects are prevented.", **one_of(GENERATION_METHODS))
    ] = "elbo",
    entity: Annotated[
        list[str] | None,
        option("What must not be missing; repeatable.", show_default="found by spaCy"),
    ] = None,
    non_entities: Annotated[
        Path | None, option("File of nouns that are not entities, instead of the usual ones.")
    ] = None,
    seed: common.Seed = 0,
    count: Annotated[int, option("Number of pictures, with successive seeds.", min=1)] = 1,
    steps: common.Steps = 50,
    guidance: common.Guidance = None,
    strength: Annotated[float, option("The largest weight of an entity, 1/gamma.", min=1)] = 1.2,
    active: Annotated[
        tuple[float, float], option("Part of the steps in which the method acts.")
    ] = (0.0, 1.0),
    size: Annotated[
        tuple[int, int] | None, option("Height and width.", show_default="native")
    ] = None,
    released: Annotated[
        bool, option("Follow the authors' code where it differs from the paper.", "--released")
    ] = False,
    compare: Annotated[
        bool, option("Also draw plainly from the same noise: compare.png.", "--compare")
    ] = False,
    plot: Annotated[
        bool, option("Plot the weights of the entities (needs matplotlib).", "--plot")
    ] = False,
    out: Annotated[Path, option("Folder for the pictures.")] = Path("pixalign-pictures"),
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    json_: common.Json = False,
) -> None:
    """Draw a prompt so that every entity it names appears. Nothing is trained."""
    from pixalign.core.files import check_folder
    from pixalign.generation.result import check_plots, plot_weights
    from pixalign.pictures.grid import picture_grid
    from pixalign.pictures.saving import write_png

    # Whatever is wrong is said before a model is loaded.
    check_prompt(prompt)
    check_folder(out)
    if plot:
        check_plots()
    check_seed(seed + count)
    GenerationSettings(steps, 1.0 if guidance is None else guidance, strength, active)
    options: dict[str, Any] = {"seed": seed, "count": count, "steps": steps, "size": size}
    options |= {"guidance": guidance, "strength": strength, "active": active}
    options["released"] = released
    named: dict[str, Any] = {"entities": entity or None}
    if non_entities is not None:
        named["ignored"] = read_non_entities(non_entities)
    if GENERATION_METHODS[method].needs:
        entities_in([prompt], **named, determiners=released)
    loaded = common.load_model(model, device, dtype, batch_size)
    with common.said_plainly():
        made = loaded.generate([prompt], method=method, **named, **options)
    for picture in made:
        picture.save(out)
        if plot and picture.entities:
            plot_weights(picture, out / f"{picture.name}-weights.png")
    if compare:
        plain = loaded.generate([prompt], method="plain", **options)
        rows = [(before.image, after.image) for before, after in zip(plain, made, strict=True)]
        titles = [f"{prompt} · seed {picture.seed}" for picture in made]
        grid = picture_grid(rows, headings=("plain", method), titles=titles, side=256)
        write_png(out / "compare.png", grid)
    if json_:
        common.print_json([picture.to_dict() for picture in made])
        return
    for picture in made:
        weighted = zip(picture.entities, picture.weights.mean(0), strict=True)
        means = ", ".join(f"{entity.text} {mean:.2f}" for entity, mean in weighted)
        print(f"{picture.name}.png" + (f"  mean weights: {means}" if means else ""))
    print(f"written to {out}")
