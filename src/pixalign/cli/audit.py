"""``pixalign audit``: what a model knows, and where it fails."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pixalign.audit import MaskedPictures, PlainPictures, Prompts, read_prompts
from pixalign.audit import audit as run_audit
from pixalign.audit.report import NAMES, number
from pixalign.audit.sources import Source
from pixalign.backbones.locations import model_name
from pixalign.bench.datasets import DATASETS, open_dataset
from pixalign.bench.datasets.captions import load_counts
from pixalign.cli import common, stop
from pixalign.cli.common import one_of, option
from pixalign.config import AlignConfig
from pixalign.core.files import check_folder
from pixalign.core.wording import counted
from pixalign.labelling.classes import Lists, read_classes
from pixalign.text.prompts import typed_classes

_FILES = (".txt", ".csv", ".json")


def audit(
    out: Annotated[Path, option("Folder for report.html and audit.json; resumable.")],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Models; the first is compared with the others."),
    ] = None,
    lora: Annotated[
        Path | None, option("A LoRA (.safetensors): the model is compared with itself and it.")
    ] = None,
    dataset: Annotated[
        str | None, option("Pictures with masks; lab needs no root.", **one_of(DATASETS))
    ] = None,
    root: Annotated[Path | None, option("Folder that holds the dataset.")] = None,
    split: Annotated[str | None, option("Part of the dataset.", show_default="the usual")] = None,
    counts: Annotated[
        Path | None, option("How often captions name each class, by `pixalign bench count`.")
    ] = None,
    images: Annotated[Path | None, option("Folder of pictures without masks.")] = None,
    classes: Annotated[
        list[str] | None,
        option("With --images: names, or a file as `pixalign label` takes it; repeatable."),
    ] = None,
    prompts: Annotated[
        Path | None, option("Prompts to draw, one a line, or a .json with their entities.")
    ] = None,
    count: Annotated[int, option("Pictures of each prompt.", min=1)] = 1,
    steps: common.Steps = 50,
    guidance: common.Guidance = None,
    limit: Annotated[int | None, option("The first so many pictures or prompts.", min=1)] = None,
    preset: Annotated[
        str, option("Settings to start from.", **one_of(("default", "fast")))
    ] = "default",
    seed: common.Seed = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    memory: common.Memory = "normal",
    json_: common.Json = False,
) -> None:
    """Report what models know: on a dataset with masks, on pictures without, or on prompts."""
    # Whatever is wrong is said before a model is loaded.
    given = {"--dataset": dataset, "--images": images, "--prompts": prompts}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        said = " and ".join(chosen) or "nothing"
        raise ValueError(f"{said} is given to audit on; allowed: one of {', '.join(given)}")
    if classes and images is None:
        raise ValueError("--classes are given without --images; a dataset has its own")
    if images is not None and not classes:
        raise ValueError("--images needs --classes: names, repeatable, or a file of them")
    load = partial(
        common.load_model,
        device=device, dtype=dtype, batch_size=batch_size, memory=memory, progress=False,
    )  # fmt: skip
    subjects = _subjects([*models] if models else [None], lora, load)
    check_folder(out)
    source: Source
    if dataset is not None:
        opened = open_dataset(dataset, root, split, limit)
        known = opened.counts() if counts is None else load_counts(counts, opened.classes)
        source = MaskedPictures(opened, known)
    elif images is not None:
        source = PlainPictures(images, _classes(classes or []), out, limit)
    else:
        assert prompts is not None
        source = Prompts(read_prompts(prompts)[:limit], count, steps, guidance)
    options: dict[str, Any] = {"config": AlignConfig.preset(preset), "seed": seed}
    try:
        with common.said_plainly():
            document = run_audit(subjects, source, out, **options, show=not json_)
    except KeyboardInterrupt:
        stop("stopped; the same command goes on from what is finished")
    if json_:
        common.print_json(document)
    else:
        _print_summary(document, out)


def _subjects(names: list[str | None], lora: Path | None, load: Any) -> dict[str, Any]:
    """What loads each model, by name; with a LoRA the one model without it and with it."""
    subjects = {model_name(name): partial(load, name) for name in names}
    if len(subjects) < len(names):
        raise ValueError(f"models are {', '.join(map(repr, names))}; one of them is given twice")
    if lora is not None:
        if len(names) > 1:
            raise ValueError(f"--lora is given and {len(names)} models; allowed: one model")
        if not lora.is_file():
            raise FileNotFoundError(f"LoRA {str(lora)!r} is missing; name a file that is there")
        ((name, plain),) = subjects.items()
        subjects[f"{name} + {lora.name}"] = partial(plain, lora=lora)
    return subjects


def _classes(texts: list[str]) -> Any:
    """Names as they are typed, or the classes of one file."""
    files = [text for text in texts if text.lower().endswith(_FILES)]
    if files and len(texts) > 1:
        raise ValueError(f"classes are {', '.join(map(repr, texts))}; allowed: names, or one file")
    found: tuple[Any, ...] | Lists = read_classes(Path(files[0])) if files else typed_classes(texts)
    return found


def _print_summary(document: dict[str, Any], out: Path) -> None:
    for subject in document["subjects"]:
        print(f"{subject['name']}: {counted(document['pictures'], 'picture')}")
        for name, figure in subject["overall"].items():
            title, percent = NAMES[name]
            print(f"  {title + (', %' if percent else ''):<48} {number(figure, percent)}")
    for pair in document["comparisons"]:
        print(f"from {pair['from']} to {pair['to']}")
        for way in ("gained", "lost"):
            print(f"  {way}: {', '.join(pair[way]) or 'none'}")
    if document["failed"]:
        common.print_warnings(
            [f"{counted(len(document['failed']), 'picture')} failed; see the report"]
        )
    print(f"written to {out}")
