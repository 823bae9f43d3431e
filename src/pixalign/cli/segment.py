"""``pixalign segment``: which pixels of a picture belong to which words."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pixalign.backbones.locations import read_settings
from pixalign.cli import common
from pixalign.cli.common import option
from pixalign.config import AlignConfig
from pixalign.core.files import check_folder, readable
from pixalign.core.values import Phrase
from pixalign.methods import method_of
from pixalign.pictures.reading import SUFFIXES, read_image
from pixalign.text.prompts import locate, typed_classes


def segment(
    items: Annotated[
        list[str],
        typer.Argument(
            metavar="IMG... CLASS...",
            help="Pictures, then what to find: dog 'hot dog', or dog,cat; "
            "'dog=a golden dog' names it dog.",
        ),
    ],
    model: common.Model = None,
    preset: common.Preset = "default",
    method: common.Method = None,
    calibrate: common.Calibrate = None,
    out: Annotated[
        Path | None,
        option(
            "Folder for the files; of several pictures, for a folder each.",
            show_default="IMG's name + -pixalign",
        ),
    ] = None,
    caption: Annotated[str | None, option("A text that contains all classes.")] = None,
    resize: common.Resize = None,
    absent: Annotated[
        Literal["keep", "drop"],
        option("Keep or drop the maps of classes that are probably absent."),
    ] = "keep",
    option_: Annotated[
        list[str] | None, option("An option of the method, NAME=VALUE; repeatable.", "--option")
    ] = None,
    gamma: common.Strength = None,
    threshold: Annotated[float | None, option("Heatmaps below it are background, 0 to 1.")] = None,
    settings: Annotated[
        Path | None, option("A settings file, as `fit` writes it.", show_default="the model's own")
    ] = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    memory: common.Memory = "normal",
    json_: common.Json = False,
) -> None:
    """Find classes in pictures: mask.png, heatmaps, overlay.png and result.json of each."""
    # Whatever is wrong is said before a model is loaded.
    chosen = {"resize": resize, "gamma": gamma, "threshold": threshold, "absent": absent}
    config = AlignConfig.preset(preset, **{k: v for k, v in chosen.items() if v is not None})
    kind = method_of(config, method)
    config = kind.configured(config, calibrate)
    options = _options(option_ or [])
    kind.check_options(options)
    images, texts = _pictures_and_classes(items)
    phrases = typed_classes(texts)
    _check_inputs(images, phrases, caption, settings)
    folders = {} if json_ and out is None else dict(enumerate(_folders(images, out)))
    for folder in folders.values():
        check_folder(folder)
    common.print_warnings(common.vocabulary_notes(model, phrases, images))
    how = (device, dtype, batch_size, memory)
    loaded = common.load_model(model, *how, settings=settings)
    asked = {"config": config, "caption": caption, "seed": seed, "options": options}
    records = _align_each(loaded, images, phrases, asked, folders, quiet=json_)
    if json_:
        common.print_json(records if len(images) > 1 else records[0])


def _check_inputs(
    images: list[str], phrases: Sequence[Phrase], caption: str | None, settings: Path | None
) -> None:
    """Read what would be read later."""
    if caption is not None:
        locate(phrases, caption)
    for image in images:
        read_image(image)
    if settings is not None:
        read_settings(settings)


def _timed(loaded: Any, image: str, phrases: Sequence[Phrase], asked: dict[str, Any]) -> Any:
    """A result that also says how long it took."""
    began = time.perf_counter()
    result = loaded.align(image, phrases, **asked)
    taken = {"seconds": round(time.perf_counter() - began, 3)}
    return dataclasses.replace(result, provenance={**result.provenance, **taken})


def _align_each(
    model: Any,
    images: list[str],
    phrases: Any,
    asked: dict[str, Any],
    folders: dict[int, Path],
    quiet: bool,
) -> list[dict[str, Any]]:
    """The records of all pictures, whose files are written, and which are told of unless quiet."""
    records = []
    for index, image in enumerate(images):
        began = time.perf_counter()
        result = model.align(image, phrases, **asked)
        taken = {"seconds": round(time.perf_counter() - began, 3)}
        result = dataclasses.replace(result, provenance={**result.provenance, **taken})
        records.append(result.to_dict())
        if index in folders:
            result.save(folders[index])
        if not quiet:
            if len(images) > 1:
                print(f"{readable(image)}:")
            _print_shares(records[-1])
            print(f"written to {readable(folders[index])}")
    return records


def _options(texts: list[str]) -> dict[str, Any]:
    """{name: value} of "name=value", a value being JSON, or else a text."""
    options = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise ValueError(f"option is {text!r}; allowed: NAME=VALUE, such as threshold=0.2")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _pictures_and_classes(items: list[str]) -> tuple[list[str], list[str]]:
    """The first argument and all files that follow it are pictures, the rest are classes."""
    count = next((i for i, item in enumerate(items) if i and not os.path.isfile(item)), len(items))
    for item in items[count:]:
        if Path(item).suffix.lower() in SUFFIXES:
            raise FileNotFoundError(f"image {item!r} is missing")
    return items[:count], items[count:]


def _folders(images: list[str], out: Path | None) -> list[Path]:
    """A folder for each picture, named after it; those of one name are numbered."""
    if out is not None and len(images) == 1:
        return [out]
    names = [Path(image).stem for image in images]
    numbers = [names[:index].count(name) + 1 for index, name in enumerate(names)]
    unique = [f"{n}-{k}" if k > 1 else n for n, k in zip(names, numbers, strict=True)]
    return [Path(f"{name}-pixalign") if out is None else out / name for name in unique]


def _print_shares(record: dict[str, Any]) -> None:
    names = [row["name"] for row in record["classes"]]
    width = max(map(len, [*names, "(background)"]))
    for row in record["classes"]:
        said = f"{row['name']:<{width}}  {row['pixel_share']:6.1%} of the pixels"
        if record["config"]["calibrate"] == "elbo":
            said += f"  score {row['score']:.3f}"
        print(said if row["trust"] is None else f"{said}  {_verdict(row['trust'])}")
    print(f"{'(background)':<{width}}  {record['background_share']:6.1%} of the pixels")
    common.print_warnings(record["warnings"])


def _verdict(trust: dict[str, Any]) -> str:
    other = f" with {trust['other']}" if trust["other"] else ""
    return f"{trust['verdict']}{other} (standing {trust['numbers']['standing']:.2%})"
