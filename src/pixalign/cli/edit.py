"""``pixalign edit``: a picture changed by changing words of its prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.cli import common
from pixalign.cli.common import one_of, option
from pixalign.editing.inversion import INVERSIONS
from pixalign.editing.plan import BLENDS, EDITING_METHODS, EditSettings


def edit(
    source: Annotated[str, option("What the picture shows.")],
    target: Annotated[str, option("What it should show.")],
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="[IMG]", help="The picture.", show_default="what SEED draws of SOURCE"
        ),
    ] = None,
    model: common.Model = None,
    method: Annotated[
        str, option("What decides where new words attend.", **one_of(EDITING_METHODS))
    ] = "elbo",
    inversion: Annotated[
        str, option("How a picture's noise is found.", **one_of(INVERSIONS))
    ] = "null-text",
    entity: Annotated[
        list[str] | None,
        option("A thing that SOURCE names; repeatable.", show_default="by spaCy"),
    ] = None,
    weight: Annotated[list[str] | None, option("WORD=FACTOR of a target word; repeatable.")] = None,
    blend: Annotated[
        str, option("What keeps the rest as it is.", **one_of(name or "none" for name in BLENDS))
    ] = "attention",
    blend_words: Annotated[
        tuple[str, str] | None, option("Source and target words for the blend.")
    ] = None,
    cross_replace: Annotated[
        float, option("Part of the steps in which attention to words is set.")
    ] = 0.8,
    self_replace: Annotated[
        float, option("Part of the steps in which self-attention is kept.")
    ] = 0.4,
    steps: common.Steps = 50,
    guidance: common.Guidance = None,
    seed: Annotated[int, option("Seed of the picture to draw, without IMG.", min=0)] = 0,
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
    """Change what the new words say, and nothing else: edited.png, compare.png and edit.json."""
    from pixalign.core.files import check_folder
    from pixalign.pictures.reading import read_image

    # Whatever is wrong is said before a model is loaded.
    check_folder(out)
    how: dict[str, Any] = {"method": method, "blend": None if blend == "none" else blend}
    how |= {"cross_replace": cross_replace, "self_replace": self_replace}
    compares_classes = EditSettings(**how).compares_classes
    how |= {"steps": steps, "guidance": guidance, "seed": seed, "inversion": inversion}
    how |= {"blend_words": blend_words, "cache": cache_folder or cache}
    how["weights"] = _factors(weight or [])
    how["entities"] = entity or (_entities(source) if compares_classes else None)
    if image is not None:
        read_image(image)
    loaded = common.load_model(model, device, dtype, batch_size)
    with common.said_plainly():
        made = loaded.edit(image, source, target, **how)
    made.save(out)
    if json_:
        common.print_json(made.to_dict())
        return
    for old, new in made.changes:
        print(f"{old or '(nothing)'} -> {new or '(nothing)'}")
    if made.figures:
        print(
            f"reconstruction: {made.figures['psnr']:.1f} dB from the picture, "
            f"{made.figures['psnr_vae']:.1f} dB from what the VAE makes of it"
        )
    if made.provenance["cache"]:
        print(f"its inversion is kept in {made.provenance['cache']}")
    print(f"written to {out}")


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


def _entities(source: str) -> list[str] | None:
    """What spaCy finds in the source prompt, where spaCy is there."""
    from pixalign.text.entities import entities_of

    try:
        entities = [entity.text for entity in entities_of(source)]
    except ValueError:  # without spaCy, only the words that change are known
        return None
    return list(dict.fromkeys(entities)) or None
