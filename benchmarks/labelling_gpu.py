"""Labelling on a GPU: pictures a second against `align` in memory, and thousands of scenes.

``python benchmarks/labelling_gpu.py --out label.json --workers 2,4 --scenes 10000`` measures the
embedded model and SD1.5's architecture with random weights at 2, 5 and 10 classes, each with the
share of the time in which the network was at work, then the same pictures by several processes that
share the device; then it labels the lab's test scenes and scores the exported COCO file. The file
is written anew after each result.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

import pixalign as pa
from benchmarks import labelling
from pixalign.backbones.load import resolve_device
from pixalign.bench.metrics import THRESHOLDS
from pixalign.core.files import make_folder, write_bytes, write_json
from pixalign.core.provenance import device_name
from pixalign.labelling.manifest import Unit
from pixalign.labelling.run import LabelRequest, Outputs, label_folder
from pixalign.labelling.work import Job, ModelFacts, UnitReport
from pixalign.labelling.workers import Processes

CLASSES = ("dog", "cat", "taco", "car", "tree", "chair", "banana", "horse", "rocket", "pizza")
_COMPARED = 200  # scenes that the benchmark measures too


class Busy:
    """Seconds in which a module's forward passes were under way, on the device's own clock."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.spans: list[list[Any]] = []
        self.handles = [
            module.register_forward_pre_hook(lambda *_: self.spans.append([self._now()])),
            module.register_forward_hook(lambda *_: self.spans[-1].append(self._now())),
        ]

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> float:
        """Since the last call."""
        if self.cuda:
            torch.cuda.synchronize()
        spans, self.spans = self.spans, []
        if self.cuda:
            return sum(first.elapsed_time(last) for first, last in spans) / 1000
        return float(sum(last - first for first, last in spans))

    def close(self) -> None:
        """Ask for no more."""
        for handle in self.handles:
            handle.remove()


@contextmanager
def watching(model: pa.Model) -> Iterator[Busy]:
    """The network of a model."""
    busy = Busy(model.backbone.denoiser, torch.device(model.backbone.device))
    try:
        yield busy
    finally:
        busy.close()


def photographs(folder: Path, count: int) -> list[Image.Image]:
    """Pictures of 640x480 as photographs come, JPEG files, and the same in memory."""
    chance, pictures = np.random.default_rng(0), []
    folder.mkdir(parents=True)
    for index in range(count):
        small = chance.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC)
        image.save(folder / f"{index:05d}.jpg", quality=90)
        with Image.open(folder / f"{index:05d}.jpg") as kept:
            pictures.append(kept.convert("RGB"))
    return pictures


def compared(
    model: pa.Model, folder: Path, pictures: list[Image.Image], preset: str
) -> Iterator[dict[str, Any]]:
    """`align` in memory and `label` from files to COCO, for each number of classes.

    "labelling_a_second" leaves out what a run does once: it tells the model by its weights, and
    shows the 100 most doubtful pictures on a page.
    """
    config, count = pa.AlignConfig.preset(preset), len(pictures)
    with tempfile.TemporaryDirectory() as temporary, watching(model) as busy:
        for number in (2, 5, 10):
            classes, runs = list(CLASSES[:number]), []

            def align(classes: list[str] = classes) -> None:
                for _ in model.align(iter(pictures), classes, config=config):
                    pass

            def label(classes: list[str] = classes, runs: list[Any] = runs) -> None:
                out = Path(temporary) / f"{len(classes)}"
                runs.append(model.label(folder, classes, out, formats=["coco"], config=config))

            list(model.align(iter(pictures[:16]), classes, config=config))
            row: dict[str, Any] = {"classes": number, "pictures": count}
            for name, work in (("align", align), ("label", label)):
                seconds, network = timed(work, busy)
                row[f"{name}_a_second"] = round(count / seconds, 2)
                row[f"network_share_{name}"] = round(network / seconds, 3)
            row["labelling_a_second"] = runs[0].summary["pictures_a_second"]
            for name in ("label", "labelling"):
                row[f"{name}_of_align"] = round(row[f"{name}_a_second"] / row["align_a_second"], 3)
            yield row


def built(kind: str, device: str) -> pa.Model:
    """The embedded model, or an architecture with random weights."""
    if kind == "embedded":
        return pa.load(device=device)
    from benchmarks.architectures import build

    return pa.load(build(kind, device).pipe)


def begun(kind: str, device: str, stamps: Path, number: int) -> pa.Model:
    """`built` in a process of its own, which says when it is ready."""
    model = built(kind, device)
    (stamps / str(number)).touch()
    return model


@dataclass
class Watched:
    """A labeller whose reports are timed."""

    labeller: Processes
    reports: list[tuple[float, int]] = field(default_factory=list)

    def facts(self, config: pa.AlignConfig) -> ModelFacts:
        """Those of its model."""
        return self.labeller.facts(config)

    def label(self, job: Job, todo: Sequence[Unit]) -> Iterator[UnitReport]:
        """The same reports."""
        for report in self.labeller.label(job, todo):
            self.reports.append((time.time(), len(report.done)))
            yield report


def by_processes(
    kind: str, device: str, workers: int, request: LabelRequest, out: Path
) -> tuple[dict[str, Any], Any]:
    """Labels by several processes on one device, with the rate once all are at work."""
    with tempfile.TemporaryDirectory() as temporary:
        load = partial(begun, kind, device, Path(temporary))
        watched = Watched(Processes(load, workers))
        try:
            run = label_folder(watched, request, out, Outputs(("coco",)))
        finally:
            watched.labeller.close()
        ready = max(path.stat().st_mtime for path in Path(temporary).iterdir())
    since = [report for report in watched.reports if report[0] > ready]
    done = sum(count for _, count in since[1:])
    rate = done / (since[-1][0] - since[0][0]) if len(since) > 1 else None
    about = {"workers": workers, "pictures": len(run.finished), "after_all_began": done}
    return {**about, "pictures_a_second": rate and round(rate, 2)}, run


def timed(work: Callable[[], None], busy: Busy) -> tuple[float, float]:
    """Seconds of some work, and those of the network in it."""
    busy.seconds()
    begun = time.perf_counter()
    work()
    spent = busy.seconds()
    return time.perf_counter() - begun, spent


def at_scale(
    device: str, count: int, preset: str, workers: int, keep: Path | None
) -> Iterator[dict[str, Any]]:
    """Scenes with their classes, labelled from files to COCO, and scored; what is known so far."""
    config = pa.AlignConfig.preset(preset)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subjects = labelling.scenes(count, folder / "pictures", min(16, os.cpu_count() or 1))
        lists = labelling.lists_of(subjects)
        request = LabelRequest(folder / "pictures", (), lists, config)
        out = folder / "out"
        found, run = by_processes("embedded", device, workers, request, out)
        found |= {"preset": preset, "seconds": run.summary["seconds"]}
        yield found
        exported = out / "coco" / "annotations" / "instances_train.json"
        if keep is not None:
            packed = gzip.compress(exported.read_bytes())
            write_bytes(make_folder(keep) / "scenes.json.gz", packed)
        masks = labelling.tallies(subjects, run.finished, THRESHOLDS[0])
        found["miou_of_exported_masks"] = labelling.miou(masks)
        yield found
        few = slice(_COMPARED)
        found["compared_scenes"] = len(subjects[few])
        model = built("embedded", device)
        found["miou_of_the_benchmark"] = labelling.benchmark_miou(model, subjects[few], preset)
        found["miou_of_their_exported_masks"] = labelling.miou(masks[few])
        yield found
        scores = labelling.coco_scores(labelling.truth_of(subjects, run.finished), exported)
        yield found | {name: round(score, 2) for name, score in scores.items()}


def main(
    out: Annotated[Path, typer.Option(help="The JSON file of results.")],
    count: Annotated[int, typer.Option(help="Photographs of the embedded model; 0: none.")] = 320,
    large: Annotated[int, typer.Option(help="Photographs of SD1.5's architecture; 0: none.")] = 64,
    workers: Annotated[str, typer.Option(help="Processes on one device, such as 2,4.")] = "",
    scenes: Annotated[int, typer.Option(help="Scenes to label and score; 0: none.")] = 0,
    keep: Annotated[Path | None, typer.Option(help="A folder for the scenes' COCO file.")] = None,
    preset: str = "fast",
    device: str = "auto",
) -> None:
    """Measure one part after the other."""
    started = time.perf_counter()
    make_folder(out.parent)
    where = resolve_device(device)
    known: dict[str, Any] = {"device": device_name(where), "cores": os.cpu_count()}
    known |= {"preset": preset, "torch": torch.__version__}

    def note(part: str, value: Any) -> None:
        known[part] = value
        known["seconds"] = round(time.perf_counter() - started, 1)
        write_json(out, known)
        print(part, value[-1] if isinstance(value, list) else value, flush=True)

    several = [int(number) for number in workers.split(",") if number]
    for kind, number in (("embedded", count), ("sd15", large)):
        if not number:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "pictures"
            pictures = photographs(folder, number)
            model, rows = built(kind, device), []
            for row in compared(model, folder, pictures, preset):
                rows.append(row)
                note(kind, rows)
            del model
            for path in sorted(folder.iterdir()) * (4 * bool(several)):  # other bytes, same picture
                copy = folder / f"{len(list(folder.iterdir())):05d}.jpg"
                copy.write_bytes(path.read_bytes() + b" " * len(copy.name))
            phrases = tuple(map(pa.Phrase, CLASSES[:2]))
            request = LabelRequest(folder, phrases, config=pa.AlignConfig.preset(preset))
            found: list[dict[str, Any]] = []
            for processes in several:
                here = Path(temporary) / f"{processes}"
                row, _ = by_processes(kind, device, processes, request, here)
                found.append(row)
                note(f"{kind}, by processes", found)
    if scenes:
        for row in at_scale(device, scenes, preset, max(several, default=1), keep):
            note("scenes", dict(row))


if __name__ == "__main__":
    typer.run(main)
