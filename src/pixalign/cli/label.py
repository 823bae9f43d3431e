"""``pixalign label``: from a folder of pictures to annotations."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from PIL import Image

from pixalign.cli import common, stop
from pixalign.cli.common import one_of, option
from pixalign.config import AlignConfig
from pixalign.core.files import check_folder
from pixalign.core.values import Phrase
from pixalign.core.wording import counted
from pixalign.labelling.classes import Lists, read_classes
from pixalign.labelling.formats import FORMATS, check_formats
from pixalign.labelling.manifest import find_pictures
from pixalign.labelling.run import (
    Labeller,
    LabelRequest,
    LabelRun,
    OneProcess,
    Outputs,
    label_folder,
)
from pixalign.labelling.workers import Processes
from pixalign.methods import method_of
from pixalign.pictures.reading import read_image
from pixalign.text.prompts import typed_classes


def label(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, with its subfolders.")],
    out: Annotated[Path, option("Folder for the labels; the same command continues there.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CLASS]...", help="What to find: dog 'hot dog' 'car=a red car'."),
    ] = None,
    classes: Annotated[
        Path | None,
        option("File of classes, one per line; a .csv or .json lists them for each picture."),
    ] = None,
    format: Annotated[
        list[str] | None, option("How labels are written; repeatable.", **one_of(FORMATS))
    ] = None,
    absent: Annotated[
        Literal["keep", "drop"], option("Keep or drop classes that are probably absent.")
    ] = "keep",
    candidates: Annotated[
        int, option("With --absent drop, how many classes a picture has at most.", min=1)
    ] = 16,
    min_area: Annotated[int, option("Leave out objects of fewer pixels.", min=0)] = 0,
    instances: Annotated[
        Literal["on", "off"], option("Whether separate parts of a class are separate objects.")
    ] = "on",
    queue: Annotated[int, option("Copy this many of the most doubtful pictures.", min=0)] = 0,
    workers: Annotated[
        int | None,
        option(
            "Processes, each with a model; they share the GPUs.",
            min=1,
            show_default="1; of a cluster its GPUs",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        option("A Ray cluster, with --workers actors: local, auto, or its head's HOST:PORT."),
    ] = None,
    strict: Annotated[bool, option("Stop at a picture that cannot be labelled.")] = False,
    model: common.Model = None,
    preset: common.Preset = "default",
    method: common.Method = None,
    calibrate: common.Calibrate = None,
    resize: common.Resize = None,
    threshold: Annotated[float | None, option("Heatmaps below it are background, 0 to 1.")] = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    batch_size: common.BatchSize = "auto",
    memory: common.Memory = "normal",
    json_: common.Json = False,
) -> None:
    """Label a folder of pictures; after a stop, the same command continues."""
    # Whatever is wrong is said before a model is loaded.
    chosen = {"resize": resize, "threshold": threshold, "absent": absent}
    overrides = {name: value for name, value in chosen.items() if value is not None}
    config = AlignConfig.preset(preset, **overrides)
    config = method_of(config, method).configured(config, calibrate)
    shared, lists = _wanted(names or [], classes)
    check_formats(format or [])
    pictures = find_pictures(folder, besides=out)
    check_folder(out)
    asked = {phrase: None for own in (lists or {}).values() for phrase in own.phrases}
    common.print_warnings(common.vocabulary_notes(model, shared or asked, _first(pictures)))
    request = LabelRequest(folder, shared, lists, config, seed, candidates)
    outputs = Outputs(tuple(format or ()), min_area, instances == "on", queue)
    load = partial(_load, model, device, dtype, batch_size, memory)
    with _labeller(load, workers, ray) as labeller:
        try:
            run = label_folder(labeller, request, out, outputs, strict=strict, show=not json_)
        except KeyboardInterrupt:
            stop("stopped; the same command continues from what is finished")
    if json_:
        common.print_json(dict(run.summary))
    else:
        _print_summary(run, out, absent)


@contextmanager
def _labeller(load: Any, workers: int | None, address: str | None) -> Iterator[Labeller]:
    """A cluster, several processes, or this one."""
    if address is not None:
        from pixalign.labelling.ray import RayCluster

        yield RayCluster(partial(load, 1, 0), address, workers)
    elif workers is None or workers == 1:
        yield OneProcess(load(1, 0))
    else:
        with closing(Processes(partial(load, workers), workers)) as processes:
            yield processes


def _load(
    model: str | None,
    device: str,
    dtype: str,
    batch_size: int | str,
    memory: str,
    workers: int,
    number: int,
) -> Any:
    """The model of a process: each GPU in turn, or its share of the cores."""
    import torch

    if workers > 1 and device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{number % torch.cuda.device_count()}"
    elif workers > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    return common.load_model(model, device, dtype, batch_size, memory, progress=False)


def _first(pictures: Mapping[str, Path]) -> Iterator[Image.Image]:
    """The first few pictures, of those that can be read."""
    for path in islice(pictures.values(), 3):
        with suppress(OSError, ValueError):
            yield read_image(path)


def _wanted(names: list[str], path: Path | None) -> tuple[tuple[Phrase, ...], Lists | None]:
    """The classes of all pictures, or the lists of each."""
    if path is None:
        return typed_classes(names), None
    if names:
        raise ValueError(f"classes are given and --classes {str(path)!r}; allowed: one of them")
    found = read_classes(path)
    return (found, None) if isinstance(found, tuple) else ((), found)


def _print_summary(run: LabelRun, out: Path, absent: str) -> None:
    about: dict[str, Any] = dict(run.summary)
    speed = about["pictures_a_second"]
    now = f" ({about['labelled_now']} in this run, {speed:.2f} per second)" if speed else ""
    labelled, objects = counted(about["pictures"], "picture"), counted(about["objects"], "object")
    print(f"{labelled} labelled{now}; {objects}")
    width = max(map(len, about["pictures_by_class"]), default=0)
    for name, count in about["pictures_by_class"].items():
        print(f"  {name:<{width}}  in {counted(count, 'picture')}")
    if about["nothing_found"]:
        print(f"  nothing found in {about['nothing_found']}")
    for name, notes in about["formats"].items():
        print(f"written to {out / name}")
        for note in notes:
            print(f"  {note}")
    verb = "is" if about["in_doubt"] == 1 else "are"
    doubted = f"{counted(about['in_doubt'], 'picture')} {verb} in doubt"
    print(f"{doubted}: open {out / 'review.html'}")
    if about["in_doubt"] and absent == "keep":
        print("--absent drop, with another --out, leaves out classes that are likely not there")
    if about["damaged_shards"]:
        damaged = counted(len(about["damaged_shards"]), "damaged file")
        print(f"warning: {damaged} made anew", file=sys.stderr)
    for failure in run.failures[:3]:
        print(f"warning: {failure.key}: {failure.reason}", file=sys.stderr)
    if run.failures:
        where = out / "failed.csv"
        failed = counted(len(run.failures), "picture")
        print(f"warning: {failed} failed, see {where}", file=sys.stderr)
