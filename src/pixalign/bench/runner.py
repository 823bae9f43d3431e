"""Run a spec on a dataset: resumable at any moment, by one process or several."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pixalign.align import Aligner
from pixalign.baselines import method
from pixalign.bench.measuring import Subject, measure
from pixalign.bench.points import Points
from pixalign.bench.spec import SUPERVISED, Spec, model_name
from pixalign.bench.store import Run
from pixalign.datasets import Dataset
from pixalign.progress import Progress
from pixalign.provenance import device_name, versions

CHUNK = 8  # images that are measured together; the results depend on it by rounding only


@dataclass(frozen=True)
class Processes:
    """This process among those that share a run."""

    index: int = 0
    count: int = 1
    state: Any = None  # accelerate's, where there are several

    @classmethod
    def here(cls, cpu: bool) -> Processes:
        """As `accelerate launch` has started this one, or alone."""
        from accelerate import PartialState

        state = PartialState(cpu=cpu)
        return cls(state.process_index, state.num_processes, state)

    @property
    def first(self) -> bool:
        """Whether this process does what is done once."""
        return self.index == 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            self.state.wait_for_everyone()


def run(
    spec: Spec,
    dataset: Dataset,
    aligner: Aligner,
    out: Path,
    *,
    model: str | Path | None,
    limit: int | None = None,
    seed: int = 0,
    counts: Mapping[str, float] | None = None,
    processes: Processes | None = None,
    show: bool = True,
) -> Run:
    """Every row of a spec on every image of a dataset, in ``out/SPEC--DATASET--MODEL``.

    What is finished is kept as it is; so the same call goes on where an earlier one stopped.
    Image i draws its noise from ``seed + i``. A run with other settings is refused.
    """
    mine = processes or Processes()
    rows = [row for row in spec.runnable_rows() if _can_read(row.method, aligner)]
    if not rows:
        methods = ", ".join(sorted({row.method for row in spec.rows}))
        raise ValueError(
            f"spec {spec.name!r} has no row that can be run on this {aligner.backbone.family} "
            f"model; its methods are {methods}"
        )
    points = Points.of(rows, aligner.backbone.family, aligner.own)
    label = model_name(model) or slug(Path(str(model)).name)
    folder = out / f"{spec.name}--{dataset.name}--{slug(label)}"
    known = counts if counts is not None else dataset.counts()
    header = _header(spec, dataset, aligner, points, label, model, limit, seed, known)
    if mine.first:
        Run.start(folder, header)
    mine.wait()
    found = Run.start(folder, header)
    done = found.done()
    mine.wait()  # nobody writes before everybody has read
    todo = [chunk for chunk in _chunks(len(dataset)) if not done.issuperset(chunk)]
    ours = todo[mine.index :: mine.count]
    with Progress(sum(map(len, ours)), f"{spec.name} on {dataset.name}", show, "image") as progress:
        for chunk in ours:
            started = time.perf_counter()
            subjects = [Subject(dataset[i], i, dataset.classes, seed + i) for i in chunk]
            measured, spent = measure(aligner, points, subjects)
            fresh = [row for row in measured if row.index not in done]
            found.append(fresh, time.perf_counter() - started, spent, mine.index)
            progress.advance(len(chunk))
    mine.wait()
    if mine.first:
        found.merge()
    mine.wait()
    return found


def _can_read(name: str, aligner: Aligner) -> bool:
    """Whether a method knows the model's kind of attention; else its rows are missing."""
    try:
        return name == "elbo" or method(name, aligner) is not None
    except ValueError:
        return False


def _chunks(images: int) -> Iterator[range]:
    """The images that are measured together are the same however often a run is stopped."""
    for first in range(0, images, CHUNK):
        yield range(first, min(first + CHUNK, images))


def slug(text: str) -> str:
    """A name for a folder."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip("-") or "model"


def _header(
    spec: Spec,
    dataset: Dataset,
    aligner: Aligner,
    points: Points,
    label: str,
    model: str | Path | None,
    limit: int | None,
    seed: int,
    counts: Mapping[str, float] | None,
) -> dict[str, Any]:
    backbone = aligner.backbone
    return {
        "spec": spec.name,
        "digest": spec.digest(),
        "label": spec.label,
        "title": spec.title,
        "columns": spec.columns,
        "baseline": spec.baseline,
        "notes": list(spec.notes),
        "extends": spec.extends,
        "dataset": dataset.name,
        "split": dataset.split,
        "limit": limit,
        "images": len(dataset),
        "classes": list(dataset.classes),
        "counts": None if counts is None else dict(counts),
        "seed": seed,
        "model": {
            "name": label,
            "id": aligner.name if model is None else str(model),
            "family": backbone.family,
            "objective": backbone.objective,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "own": dict(aligner.own),
        },
        "rows": [
            {
                "name": point.row.name,
                "method": point.row.method,
                "baseline": point.row.baseline,
                "config": point.config.to_dict(),
                "scores": point.row.scores,
                "options": dict(point.row.options),
                "supervised": point.row.method in SUPERVISED,
            }
            for point in points.points
        ],
        "missing": [row.name for row in spec.rows if row not in [p.row for p in points.points]],
        "device": device_name(backbone.device),
        "versions": versions(),
        "git": git_hash(),
    }


def git_hash() -> str | None:
    """The commit of the checkout that this package is run from, or None outside of one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def check_counts(classes: Sequence[str], counts: Mapping[str, float] | None) -> None:
    """Raise a ValueError unless every class has a count."""
    lacking = [name for name in classes if name not in (counts or {})]
    if lacking:
        raise ValueError(
            f"{len(lacking)} classes have no count, {lacking[0]!r} first; give --counts with a "
            "table that `pixalign bench count` made"
        )
