"""How fast a folder is labelled, and how good the labels of scenes of known truth are.

``python benchmarks/labelling.py speed`` compares pictures a second from files with those of
``align`` on the same pictures in memory; ``quality`` labels scenes and scores the exported COCO
file with pycocotools' own evaluation, and its masks as the benchmark does, beside what the
benchmark itself finds; ``doubt`` says how
well the order of review finds the worst masks.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import pixalign as pa
from pixalign.bench.datasets import Sample, open_dataset
from pixalign.bench.measuring import Bench
from pixalign.bench.metrics import THRESHOLDS, Tally, curve, nearest_threshold, tally
from pixalign.bench.spec import SpecRow
from pixalign.bench.subject import Subject
from pixalign.core.values import Phrase
from pixalign.labelling.classes import PictureClasses
from pixalign.labelling.formats import write_format
from pixalign.labelling.records import LabelledPictures
from pixalign.labelling.uncertainty import (
    doubts,
    least_certain,
    least_standing,
    uncertainty,
)
from pixalign.pictures.coco import compressed_runs, object_annotation, run_lengths
from pixalign.pictures.segments import find_segments

Model = Annotated[str | None, typer.Option(show_default="the embedded model")]
Preset = Annotated[str, typer.Option(help="Settings.")]
Count = Annotated[int, typer.Option(min=1)]
Numbers = NDArray[np.float64]
app = typer.Typer(add_completion=False)


def scenes(count: int, folder: Path, processes: int = 1, split: str = "test") -> list[Subject]:
    """The lab's first scenes, with the benchmark's seeds; their pictures are in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [(count, range(low, min(low + 96, count)), split) for low in range(0, count, 96)]
    if processes == 1:
        drawn = [each for part in parts for each in _drawn(folder, *part)]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(processes, len(parts)), context, _one_thread) as pool:
            made = [pool.submit(_drawn, folder, *part) for part in parts]
            drawn = [each for part in made for each in part.result()]
    classes = open_dataset("lab", None, split, count).classes
    return [Subject(sample, index, classes, 0) for index, sample in enumerate(drawn)]


def _one_thread() -> None:
    torch.set_num_threads(1)  # the processes share the cores


def _drawn(folder: Path, count: int, places: range, split: str) -> list[Sample]:
    """Some of so many scenes, written as files."""
    dataset = open_dataset("lab", None, split, count)
    samples = [dataset[index] for index in places]
    for sample in samples:
        sample.image.save(folder / f"{sample.key}.png")
    return samples


def lists_of(subjects: list[Subject]) -> dict[str, PictureClasses]:
    """Each scene's classes, and the seed that the benchmark gives it."""
    return {
        f"{subject.sample.key}.png": PictureClasses(tuple(subject.phrases), subject.seed)
        for subject in subjects
    }


def truth_of(subjects: list[Subject], run: LabelledPictures) -> dict[str, Any]:
    """A COCO file of the true masks, with the run's numbers of pictures and categories."""
    keys = [picture.key for picture in run]
    images, annotations = [], []
    for subject in subjects:
        number = keys.index(f"{subject.sample.key}.png") + 1
        images.append({"id": number, "height": subject.size[0], "width": subject.size[1]})
        names = [run.classes.index(phrase.name) + 1 for phrase in subject.phrases]
        mask = np.array([0, *names], dtype=np.uint16)[subject.truth.numpy()]
        numbers, segments = find_segments(mask)
        lengths = run_lengths(numbers, segments)
        for segment, counts in zip(segments, lengths, strict=True):
            runs = compressed_runs(counts, subject.size)
            annotations.append({"image_id": number, **object_annotation(segment, runs)})
    return {
        "info": {},
        "images": images,
        "categories": [{"id": i, "name": name} for i, name in enumerate(run.classes, 1)],
        "annotations": [{"id": i, **each} for i, each in enumerate(annotations, 1)],
    }


def coco_scores(truth: dict[str, Any], exported: Path) -> dict[str, float]:
    """Average precision and recall of masks, as pycocotools computes them, in percent."""
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        found = known.loadRes(json.loads(exported.read_text())["annotations"])
        evaluation = COCOeval(known, found, "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    names = ("AP", "AP50", "AP75")
    scores = {name: 100 * float(x) for name, x in zip(names, evaluation.stats, strict=False)}
    return scores | {"AR": 100 * float(evaluation.stats[8])}


def tallies(subjects: list[Subject], run: LabelledPictures, threshold: float) -> list[Tally]:
    """Hits and claims of each scene's exported mask, at the threshold it was made with."""
    masks = {picture.key: picture.mask for picture in run}
    found = []
    for subject in subjects:
        mask = torch.from_numpy(masks[f"{subject.sample.key}.png"].astype(np.int64))
        own = [run.classes.index(phrase.name) + 1 for phrase in subject.phrases]
        maps = torch.stack([(mask == label).float() for label in own])[None]
        labels = [label + 1 for label in subject.labels]
        (tallied,) = tally(maps, subject.truth, labels, subject.index)
        found.append(tallied.at(threshold))
    return found


def miou(parts: list[Tally]) -> float:
    """Of pixels pooled over the scenes, in percent."""
    return 100 * float(curve(Tally.concatenate(parts)).miou[0, 0])


def benchmark_miou(model: pa.Model, subjects: list[Subject], preset: str) -> float:
    """What the benchmark measures of the same scenes under the model's own threshold."""
    row = SpecRow(name="ours", baseline="ours", preset=preset, method="dense")
    threshold = model.resolve(row.config, "dense").threshold
    assert threshold is not None
    rows, _ = Bench([row], model).measure(subjects)
    return miou([each.tallies["ours"][0].at(nearest_threshold(threshold)) for each in rows])


@app.command()
def quality(
    count: Count = 300,
    model: Model = None,
    preset: Preset = "default",
    min_area: int = 0,
    keep: Annotated[Path | None, typer.Option(help="A folder in which a run goes on.")] = None,
) -> None:
    """Label scenes, each with its classes; score the COCO file, and the masks."""
    loaded = pa.load(model, progress=True)
    config = pa.AlignConfig.preset(preset)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        subjects = scenes(count, folder / "pictures")
        options: dict[str, Any] = {"config": config, "min_area": min_area}
        run = loaded.label(folder / "pictures", lists_of(subjects), folder / "out", **options)
        write_format("coco", run.finished, folder / "coco")
        exported = folder / "coco" / "annotations" / "instances_train.json"
        scores = coco_scores(truth_of(subjects, run.finished), exported)
        masks = tallies(subjects, run.finished, THRESHOLDS[0])
    said = "  ".join(f"{name} {value:.1f}" for name, value in scores.items())
    print(f"{count} scenes, {loaded.name}, preset {preset}, min_area {min_area}")
    print(f"COCOeval of masks: {said}")
    print(f"mIoU of the exported masks {miou(masks):.4f}", flush=True)
    print(f"mIoU of the benchmark      {benchmark_miou(loaded, subjects, preset):.4f}")
    print(f"{run.summary['pictures_a_second']} pictures a second")


def with_absent(subjects: list[Subject], split: str, count: int) -> dict[str, PictureClasses]:
    """Each scene's classes and so many that are not in it."""
    names = open_dataset("lab", None, split, 12).classes
    chance, lists = np.random.default_rng(0), {}
    for key, own in lists_of(subjects).items():
        there = {phrase.name for phrase in own.phrases}
        others = [name for name in names if name not in there]
        more = [Phrase(str(name)) for name in chance.choice(others, count, replace=False)]
        lists[key] = PictureClasses((*own.phrases, *more), own.seed)
    return lists


def rank_correlation(one: Numbers, other: Numbers) -> float:
    """Spearman's."""
    ranks = [np.unique(values, return_inverse=True)[1] for values in (one, other)]
    counts = [np.bincount(rank) for rank in ranks]
    means = [np.cumsum(n) - (n + 1) / 2 for n in counts]  # ties share their mean rank
    pairs = [mean[rank] for mean, rank in zip(means, ranks, strict=True)]
    return float(np.corrcoef(*pairs)[0, 1])


def worst_found(
    doubtful: Numbers, true: Numbers, worst: float = 0.1, first: float = 1 / 3
) -> float:
    """The share of the worst masks, a tenth, that stand in the first third of the queue."""
    many, seen = max(1, round(worst * len(true))), round(first * len(true))
    bad = np.argsort(true, kind="stable")[:many]
    return float(np.isin(bad, np.argsort(-doubtful, kind="stable")[:seen]).mean())


def spread(figure: Callable[..., float], *values: Numbers, draws: int = 1000) -> str:
    """A figure, and its 95 % interval over resampled pictures."""
    chance, many = np.random.default_rng(0), len(values[0])
    picks = chance.integers(0, many, (draws, many))
    low, high = np.quantile([figure(*(x[pick] for x in values)) for pick in picks], (0.025, 0.975))
    return f"{figure(*values):+.2f} ({low:+.2f} to {high:+.2f})"


@app.command()
def doubt(
    count: Count = 120,
    model: Model = None,
    absent: Annotated[int, typer.Option(help="Classes a scene that are not in it.")] = 3,
    split: str = "test",
    keep: Annotated[Path | None, typer.Option(help="A folder in which a run goes on.")] = None,
) -> None:
    """Does review show the worst first? mIoU of each mask against its place in the queue."""
    loaded = pa.load(model, progress=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        subjects = scenes(count, folder / "pictures", split=split)
        lists = with_absent(subjects, split, absent)
        config = pa.AlignConfig.fast(absent="drop" if absent else "keep")
        run = loaded.label(folder / "pictures", lists, folder / "out", config=config)
        pictures = list(run.finished)
        parts = tallies(subjects, run.finished, THRESHOLDS[0])
    by_key = {f"{s.sample.key}.png": miou([part]) for s, part in zip(subjects, parts, strict=True)}
    true = np.array([by_key[picture.key] for picture in pictures])
    least = [least_certain(picture) for picture in pictures]
    measures = {
        "review's order": [uncertainty(picture) for picture in pictures],
        "least certain": [0.0 if pair is None else 1 - pair[1] for pair in least],
        "least standing": [-(least_standing(picture.record) or 0) for picture in pictures],
        "entropy": [picture.record["entropy"] for picture in pictures],
        "1 - margin": [1 - picture.record["margin"] for picture in pictures],
        "verdicts": [float(bool(doubts(picture.record))) for picture in pictures],
    }
    print(f"{count} {split} scenes with {absent} absent classes each, {loaded.name}, preset fast")
    print(f"mean mIoU {true.mean():.1f}, the worst tenth below {np.quantile(true, 0.1):.1f}")
    print(f"{'':<16}{'rank correlation':<26}worst tenth found in the first third (chance .33)")
    for name, values in measures.items():
        doubtful = np.array(values)
        found = spread(rank_correlation, doubtful, -true)
        print(f"{name:<16}{found:<26}{spread(worst_found, doubtful, true)}")


@app.command()
def speed(
    count: Count = 48,
    side: int = 1500,
    preset: Preset = "fast",
    model: Model = None,
    turns: Count = 3,
) -> None:
    """Pictures a second from JPEG files to the review page, against `align` on them in memory.

    The best of some turns; seconds of the processor count on a machine that does other things too.
    """
    loaded = pa.load(model)
    config, classes = pa.AlignConfig.preset(preset), ["dog", "cat", "taco"]
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pictures"
        folder.mkdir()
        pictures = []
        for index in range(count):
            small = chance.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            image = Image.fromarray(small).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
            image.save(folder / f"{index:04d}.jpg", quality=90)
            pictures.append(image)
        loaded.align(pictures[:2], classes, config=config)  # the first passes are slower
        spent: dict[str, list[tuple[float, float]]] = {"align in memory": [], "label": []}
        for turn in range(turns):
            begun = time.perf_counter(), time.process_time()
            for _ in loaded.align(iter(pictures), classes, config=config):
                pass
            spent["align in memory"].append(_since(begun))
            begun = time.perf_counter(), time.process_time()
            loaded.label(folder, classes, Path(temporary) / f"{turn}", config=config)
            spent["label"].append(_since(begun))
    print(f"{count} JPEGs of {side * 4 // 3}x{side}, {len(classes)} classes, preset {preset}")
    best = {
        name: [min(column) for column in zip(*rows, strict=True)] for name, rows in spent.items()
    }
    for name, (wall, processor) in best.items():
        base = best["align in memory"]
        print(
            f"{name:<16} {count / wall:.2f} pictures a second ({base[0] / wall:.0%}), "
            f"{count / processor:.2f} a second of processor time ({base[1] / processor:.0%})"
        )


def _since(begun: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


if __name__ == "__main__":
    app()
