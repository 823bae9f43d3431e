"""``pixalign segment``: which pixels of a picture belong to which words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pixalign.cli import common
from pixalign.cli.common import one_of, option
from pixalign.config import CALIBRATIONS, PRESETS, AlignConfig
from pixalign.methods import METHODS, method_of

_METHOD = one_of(name for name, kind in METHODS.items() if not kind.supervised)


def segment(
    image: Annotated[str, typer.Argument(metavar="IMG", help="The picture.")],
    classes: Annotated[
        list[str],
        typer.Argument(metavar="CLASS...", help="What to find. 'dog=a golden dog' names it dog."),
    ],
    model: common.Model = None,
    preset: Annotated[str, option("Settings to start from.", **one_of(PRESETS))] = "default",
    method: Annotated[
        str | None,
        option("How heatmaps are made.", show_default="the preset's, else dense", **_METHOD),
    ] = None,
    calibrate: Annotated[
        str | None,
        option("What calibrates a baseline's maps.", show_default="none", **one_of(CALIBRATIONS)),
    ] = None,
    out: Annotated[
        Path | None, option("Folder for the files.", show_default="IMG's name + -pixalign")
    ] = None,
    caption: Annotated[str | None, option("A text with the classes, to read instead.")] = None,
    resize: Annotated[
        Literal["square", "keep"] | None, option("Square, or keep the picture's shape.")
    ] = None,
    absent: Annotated[
        Literal["keep", "drop"], option("Whether classes that are likely not there keep a map.")
    ] = "keep",
    gamma: Annotated[float | None, option("Strength: 1 is none, 1/3 the paper's.")] = None,
    threshold: Annotated[float | None, option("Heatmaps below it are background, 0 to 1.")] = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    memory: common.Memory = "normal",
    json_: common.Json = False,
) -> None:
    """Find classes in a picture: mask.png, heatmaps, overlay.png and result.json."""
    from pixalign.core.files import check_folder
    from pixalign.core.values import Phrase
    from pixalign.pictures.reading import read_image
    from pixalign.text.prompts import as_phrases, locate

    # Whatever is wrong is said before a model is loaded.
    chosen = {"resize": resize, "gamma": gamma, "threshold": threshold, "absent": absent}
    overrides = {name: value for name, value in chosen.items() if value is not None}
    config = AlignConfig.preset(preset, **overrides)
    config = method_of(config, method).configured(config, calibrate)
    pairs = [text.partition("=") for text in classes]
    for text, (_, separator, phrase) in zip(classes, pairs, strict=True):
        if separator and not phrase.strip():
            raise ValueError(f"class {text!r} has nothing after '='")
    phrases = as_phrases([Phrase(name, phrase) for name, _, phrase in pairs])
    if caption is not None:
        locate(phrases, caption)
    read_image(image)
    folder = out or (None if json_ else Path(f"{Path(image).stem}-pixalign"))
    if folder is not None:
        check_folder(folder)
    loaded = common.load_model(model, device, dtype, batch_size, memory)
    result = loaded.align(image, phrases, config=config, caption=caption, seed=seed)
    if folder is not None:
        result.save(folder)
    if json_:
        common.print_json(result.to_dict())
    else:
        _print_shares(result.to_dict())
        print(f"written to {folder}")


def _print_shares(record: dict[str, Any]) -> None:
    names = [row["name"] for row in record["classes"]]
    width = max(map(len, [*names, "(background)"]))
    for row in record["classes"]:
        said = f"{row['name']:<{width}}  {row['pixel_share']:6.1%} of the pixels"
        if record["config"]["calibrate"] == "elbo":
            said += f"  score {row['score']:.3f}"
        print(said if row["trust"] is None else f"{said}  {_verdict(row['trust'])}")
    print(f"{'(background)':<{width}}  {record['background_share']:6.1%} of the pixels")
    for warning in record["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)


def _verdict(trust: dict[str, Any]) -> str:
    other = f" with {trust['other']}" if trust["other"] else ""
    return f"{trust['verdict']}{other} (standing {trust['numbers']['standing']:.2f})"
