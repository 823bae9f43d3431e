"""``pixalign edit``: a picture changed by changing words of its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.cli import common
from pixalign.cli.choices import BlendName, EditingMethodName, InversionName
from pixalign.cli.common import option


def edit(
    source: Annotated[str, option("What the picture shows.")],
    target: Annotated[str, option("What it shall show.")],
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="[IMG]", help="The picture.", show_default="what SEED draws of SOURCE"
        ),
    ] = None,
    model: common.Model = None,
    method: Annotated[EditingMethodName, option("What says where new words attend.")] = "elbo",
    inversion: Annotated[InversionName, option("How a picture's noise is found.")] = "null-text",
    entity: Annotated[
        list[str] | None,
        option("What SOURCE names, to compare with; repeatable.", show_default="by spaCy"),
    ] = None,
    weight: Annotated[list[str] | None, option("WORD=FACTOR of a target word; repeatable.")] = None,
    blend: Annotated[BlendName, option("What keeps the rest as it is.")] = "attention",
    blend_words: Annotated[
        tuple[str, str] | None, option("Source and target words for the blend.")
    ] = None,
    cross_replace: Annotated[
        float, option("Part of the steps in which attention to words is written.")
    ] = 0.8,
    self_replace: Annotated[
        float, option("Part of the steps in which self-attention is taken over.")
    ] = 0.4,
    steps: common.Steps = 50,
    guidance: common.Guidance = None,
    seed: Annotated[int, option("Of the picture to draw, without IMG.", min=0)] = 0,
    out: Annotated[Path, option("Folder for the files.")] = Path("pixalign-edit"),
    cache: Annotated[
        bool, option("Keep inversions in the user's cache, at most 2 GiB.", "--cache")
    ] = False,
    cache_folder: Annotated[Path | None, option("Keep inversions in this folder instead.")] = None,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    json_: common.Json = False,
) -> None:
    """Change what the words say, and only there: edited.png, compare.png and edit.json."""
    from pixalign.core.files import check_folder
    from pixalign.editing.plan import EditSettings
    from pixalign.pictures.reading import read_image

    # Whatever is wrong is said before a model is loaded.
    check_folder(out)
    how: dict[str, Any] = {"method": str(method), "blend": None if blend == "none" else str(blend)}
    how |= {"cross_replace": cross_replace, "self_replace": self_replace}
    settings = EditSettings(**how)
    options: dict[str, Any] = {"steps": steps, "guidance": guidance, "seed": seed}
    options |= {"inversion": str(inversion), "blend_words": blend_words}
    options["cache"] = cache_folder or cache
    options["weights"] = _factors(weight or [])
    options["entities"] = entity or _entities(source, settings.compares_classes)
    if image is not None:
        read_image(image)
    loaded = common.load_model(model, device, dtype, batch_size)
    with common.said_plainly():
        made = loaded.edit(image, source, target, **how, **options)
    made.save(out)
    if json_:
        common.print_json(made.to_dict())
        return
    _print_edit(made)
    print(f"written to {out}")


def _print_edit(made: Any) -> None:
    """What changed, how well the picture was met, and where its inversion is."""
    for old, new in made.changes:
        print(f"{old or '(nothing)'} -> {new or '(nothing)'}")
    if made.figures:
        figures = made.figures
        print(
            f"reconstruction: {figures['psnr']:.1f} dB from the picture, "
            f"{figures['psnr_vae']:.1f} dB from what the VAE makes of it"
        )
    if made.provenance["cache"]:
        print(f"its inversion is kept in {made.provenance['cache']}")


def _factors(texts: list[str]) -> dict[str, float] | None:
    """{word: factor} of "word=2"."""
    factors = {}
    for text in texts:
        word, _, factor = text.rpartition("=")
        try:
            factors[word] = float(factor)
        except ValueError:
            word = ""
        if not word.strip():
            raise ValueError(f"weight is {text!r}; allowed: WORD=FACTOR, such as red=2")
    return factors or None


def _entities(source: str, wanted: bool) -> list[str] | None:
    """What spaCy finds in the source prompt, where heatmaps are compared and spaCy is there."""
    from pixalign.text.entities import entities_of

    if not wanted:
        return None
    try:
        entities = [entity.text for entity in entities_of(source)]
    except ValueError:  # without spaCy, only the words that change are known
        return None
    return list(dict.fromkeys(entities)) or None
