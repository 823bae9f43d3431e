"""Labelling on a GPU: pictures a second against `align` in memory, and thousands of scenes.

``python benchmarks/labelling_gpu.py --out label.json`` measures the embedded model and SD1.5's
architecture with random weights at 2, 5 and 10 classes, each with the share of the time in which
the network was at work; then it labels as many of the lab's test scenes as the minutes allow and
scores the exported COCO file. The file is written anew after each result.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

import pixalign as pa
from benchmarks import labelling
from pixalign.bench.metrics import THRESHOLDS
from pixalign.core.files import write_json

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


def compared(model: pa.Model, count: int, preset: str, turns: int) -> Iterator[dict[str, Any]]:
    """`align` in memory and `label` from files to COCO, for each number of classes."""
    config = pa.AlignConfig.preset(preset)
    with tempfile.TemporaryDirectory() as temporary, watching(model) as busy:
        pictures = photographs(Path(temporary) / "pictures", count)
        for number in (2, 5, 10):
            classes = list(CLASSES[:number])

            def align(classes: list[str] = classes) -> None:
                for _ in model.align(iter(pictures), classes, config=config):
                    pass

            def label(classes: list[str] = classes) -> None:
                out = Path(temporary) / "out"
                shutil.rmtree(out, ignore_errors=True)
                folder = Path(temporary) / "pictures"
                model.label(folder, classes, out, formats=["coco"], config=config)

            list(model.align(iter(pictures[:16]), classes, config=config))
            row: dict[str, Any] = {"classes": number, "pictures": count}
            for name, work in (("align", align), ("label", label)):
                seconds, network = min(timed(work, busy) for _ in range(turns))
                row[f"{name}_a_second"] = round(count / seconds, 2)
                row[f"network_share_{name}"] = round(network / seconds, 3)
            row["label_of_align"] = round(row["label_a_second"] / row["align_a_second"], 3)
            yield row


def timed(work: Callable[[], None], busy: Busy) -> tuple[float, float]:
    """Seconds of some work, and those of the network in it."""
    busy.seconds()
    begun = time.perf_counter()
    work()
    spent = busy.seconds()
    return time.perf_counter() - begun, spent


def at_scale(model: pa.Model, count: int, preset: str, processes: int) -> Iterator[dict[str, Any]]:
    """Scenes with their classes, labelled from files to COCO, and scored; what is known so far."""
    config = pa.AlignConfig.preset(preset)
    with tempfile.TemporaryDirectory() as temporary, watching(model) as busy:
        folder, begun = Path(temporary), time.perf_counter()
        subjects = labelling.scenes(count, folder / "pictures", processes)
        found: dict[str, Any] = {"scenes": count, "preset": preset}
        found["rendering_seconds"] = round(time.perf_counter() - begun, 1)
        yield found
        lists = labelling.lists_of(subjects)
        runs: list[Any] = []

        def label() -> None:
            options: dict[str, Any] = {"config": config, "min_area": 0, "formats": ["coco"]}
            runs.append(model.label(folder / "pictures", lists, folder / "out", **options))

        seconds, network = timed(label, busy)
        (run,) = runs
        found["pictures_a_second"] = round(count / seconds, 2)
        found["labelling_alone_a_second"] = run.summary["pictures_a_second"]
        found["network_share"] = round(network / seconds, 3)
        masks = labelling.tallies(subjects, run.finished, THRESHOLDS[0])
        found["miou_of_exported_masks"] = labelling.miou(masks)
        yield found
        few = slice(_COMPARED)
        found["compared_scenes"] = len(subjects[few])
        found["miou_of_the_benchmark"] = labelling.benchmark_miou(model, subjects[few], preset)
        found["miou_of_their_exported_masks"] = labelling.miou(masks[few])
        yield found
        exported = folder / "out" / "coco" / "annotations" / "instances_train.json"
        truth = labelling.truth_of(subjects, run.finished)
        scores = labelling.coco_scores(truth, exported)
        yield found | {name: round(score, 2) for name, score in scores.items()}


def main(
    out: Annotated[Path, typer.Option(help="The JSON file of results.")],
    minutes: Annotated[float, typer.Option(help="About how long it may take in all.")] = 4,
    count: Annotated[int, typer.Option(help="Photographs of the embedded model.")] = 160,
    large: Annotated[int, typer.Option(help="Photographs of SD1.5's architecture; 0: none.")] = 48,
    scenes: Annotated[int, typer.Option(help="The most of them.")] = 10_000,
    preset: str = "fast",
    turns: int = 2,
    device: str = "auto",
) -> None:
    """Measure one part after the other."""
    begun = time.perf_counter()
    model = pa.load(device=device)
    where = torch.device(model.backbone.device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else platform.machine()
    known: dict[str, Any] = {"device": name, "cores": os.cpu_count(), "preset": preset}
    known["torch"] = torch.__version__

    def note(part: str, value: Any) -> None:
        known[part] = value
        known["seconds"] = round(time.perf_counter() - begun, 1)
        write_json(out, known)
        print(part, value[-1] if isinstance(value, list) else value, flush=True)

    rates: list[dict[str, Any]] = []
    for row in compared(model, count, preset, turns):
        rates.append(row)
        note("embedded", rates)
    if large:
        from benchmarks.architectures import build

        sd15, rows = pa.load(build("sd15", device).pipe), []
        for row in compared(sd15, large, preset, 1):
            rows.append(row)
            note("sd15", rows)
        del sd15
    left = 60 * minutes - (time.perf_counter() - begun)
    # Half of what is left to labelling; the rest to rendering and scoring. Scenes have 2 to 4.
    most = int(0.5 * left * rates[0]["label_a_second"])
    wanted = max(12, min(scenes, most // 12 * 12))
    for row in at_scale(model, wanted, preset, min(16, os.cpu_count() or 1)):
        note("scenes", dict(row))


if __name__ == "__main__":
    typer.run(main)
