"""``pixalign edit``: a picture changed by changing words of its prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.cli.common import Device, Json, print_json, said_plainly


def edit(
    source: Annotated[str, typer.Option(help="What the picture shows.")],
    target: Annotated[str, typer.Option(help="What it shall show.")],
    image: Annotated[
        str | None,
        typer.Argument(metavar="[IMG]", help="The picture. [default: what SEED draws of SOURCE]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id, folder or lab:NAME. [default: the embedded model]")
    ] = None,
    method: Annotated[str, typer.Option(help="elbo, ptp or diffsegmenter.")] = "elbo",
    inversion: Annotated[
        str, typer.Option(help="How a picture's noise is found: null-text or ddim.")
    ] = "null-text",
    entity: Annotated[
        list[str] | None,
        typer.Option(help="What SOURCE names, to compare with; repeatable. [default: by spaCy]"),
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="WORD=FACTOR of a target word; repeatable.")
    ] = None,
    blend: Annotated[
        str, typer.Option(help="What keeps the rest as it is: attention, heatmap or none.")
    ] = "attention",
    blend_words: Annotated[
        tuple[str, str] | None, typer.Option(help="Source and target words for the blend.")
    ] = None,
    cross_replace: Annotated[
        float, typer.Option(help="Part of the steps in which attention to words is written.")
    ] = 0.8,
    self_replace: Annotated[
        float, typer.Option(help="Part of the steps in which self-attention is taken over.")
    ] = 0.4,
    steps: Annotated[int, typer.Option(help="Denoising steps.", min=1)] = 50,
    guidance: Annotated[
        float | None, typer.Option(help="[default: the family's: 7.5, SDXL 5, SD3 7]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the picture to draw, without IMG.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("pixalign-edit"),
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps inversions. [default: the user's cache]")
    ] = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    batch_size: Annotated[str, typer.Option(help="Passes at once: auto or a number.")] = "auto",
    json_: Json = False,
) -> None:
    """Change what the words say, and only there: edited.png, compare.png and edit.json."""
    from pixalign.backbones.load import hide_loading_bars
    from pixalign.core.files import check_folder
    from pixalign.editing import edit as run_edit

    check_folder(out)
    options: dict[str, Any] = {"method": method, "inversion": inversion, "model": model}
    options |= {"blend": None if blend == "none" else blend, "blend_words": blend_words}
    options |= {"cross_replace": cross_replace, "self_replace": self_replace, "seed": seed}
    options |= {"steps": steps, "guidance": guidance, "device": device, "dtype": dtype}
    options |= {"weights": _factors(weight or []), "cache": "auto" if cache is None else cache}
    options["batch_size"] = int(batch_size) if batch_size.isdecimal() else batch_size
    options["entities"] = entity or _entities(source, method == "elbo" or blend == "heatmap")
    if not sys.stderr.isatty():
        hide_loading_bars()
    with said_plainly():
        made = run_edit(image, source, target, progress=True, **options)
    made.save(out)
    if json_:
        print_json(made.to_dict())
        return
    for old, new in made.changes:
        print(f"{old or '(nothing)'} -> {new or '(nothing)'}")
    if made.figures:
        figures = made.figures
        print(
            f"reconstruction: {figures['psnr']:.1f} dB from the picture, "
            f"{figures['psnr_vae']:.1f} dB from what the VAE makes of it"
        )
    print(f"written to {out}")


def _factors(texts: list[str]) -> dict[str, float] | None:
    """{word: factor} of "word=2"."""
    found = {}
    for text in texts:
        word, _, factor = text.rpartition("=")
        try:
            found[word] = float(factor)
        except ValueError:
            word = ""
        if not word.strip():
            raise ValueError(f"weight is {text!r}; allowed: WORD=FACTOR, such as red=2")
    return found or None


def _entities(source: str, wanted: bool) -> list[str] | None:
    """What spaCy finds in the source prompt, where heatmaps are compared and spaCy is there."""
    from pixalign.generation import entities_of

    if not wanted:
        return None
    try:
        found = [entity.text for entity in entities_of(source)]
    except ValueError:  # without spaCy, only the words that change are known
        return None
    return list(dict.fromkeys(found)) or None
