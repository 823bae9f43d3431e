"""Run a spec on a dataset: resumable at any moment, by one process or several."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pixalign.bench.datasets import Dataset
from pixalign.bench.measuring import Bench, Subject
from pixalign.bench.spec import Spec, SpecRow, paper_model_name
from pixalign.bench.store import Run, writing
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.methods import METHODS

PATIENCE = timedelta(days=7)  # how long a process that is done waits for the others
_OF_SPEC = ("label", "title", "columns", "baseline", "extends")
_OF_ROWS = ("name", "method", "baseline", "scores", "exponents", "options", "supervised")
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

        state = PartialState(cpu=cpu, timeout=PATIENCE)
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
    model: AlignmentModel,
    out: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    counts: Mapping[str, float] | None = None,
    processes: Processes | None = None,
    show: bool = True,
) -> Run:
    """Every row of a spec on every image of a dataset, in ``out/SPEC--DATASET--MODEL``.

    What is finished is kept as it is; so the same call goes on where an earlier one stopped. Each
    image draws its noise by ``seed`` and its key. A run with other settings is refused.
    """
    ours = processes or Processes()
    bench = Bench(_readable(spec, model), model)
    label = paper_model_name(model.name) or folder_name(Path(model.name).name)
    folder = out / f"{spec.name}--{dataset.name}--{folder_name(label)}"
    known = counts if counts is not None else dataset.counts()
    asked = {"limit": limit, "seed": seed, "counts": None if known is None else dict(known)}
    header = {**_header(spec, dataset, bench, label), **asked}
    with writing(folder) if ours.first else nullcontext():  # the first process does so for all
        if ours.first:
            Run.start(folder, header)
        ours.wait()
        run = Run.start(folder, header)
        done = run.done()
        ours.wait()  # nobody writes before everybody has read
        _fill(run, done, bench, dataset, ours, show)
        ours.wait()
        if ours.first:
            run.merge()
        ours.wait()
    return run


def _fill(
    run: Run, done: set[int], bench: Bench, dataset: Dataset, processes: Processes, show: bool
) -> None:
    """Measure this process's part of the images that are not done.

    The images that are measured together are the same however often a run is stopped.
    """
    chunks = [range(len(dataset))[first : first + CHUNK] for first in range(0, len(dataset), CHUNK)]
    todo = [chunk for chunk in chunks if not done.issuperset(chunk)]
    part = todo[processes.index :: processes.count]
    title = f"{run.header['spec']} on {dataset.name}"
    with Progress(sum(map(len, part)), title, show, "image") as progress:
        for chunk in part:
            started = time.perf_counter()
            seed = run.header["seed"]
            measured, spent = bench.measure(
                [Subject(dataset[i], i, dataset.classes, seed) for i in chunk]
            )
            fresh = [row for row in measured if row.index not in done]
            run.append(fresh, time.perf_counter() - started, spent, processes.index)
            progress.advance(len(chunk))


def _readable(spec: Spec, model: AlignmentModel) -> list[SpecRow]:
    """The rows whose method knows the model's kind of attention; the others are missing."""
    backbone = model.backbone
    rows = [row for row in spec.rows if METHODS[row.method].reads(backbone)]
    if not rows:
        methods = ", ".join(sorted({row.method for row in spec.rows}))
        raise ValueError(
            f"spec {spec.name!r} has no row that can be run on this {backbone.family} model; its "
            f"methods are {methods}"
        )
    return rows


def folder_name(text: str) -> str:
    """A text as part of a folder's name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip("-") or "model"


def _header(spec: Spec, dataset: Dataset, bench: Bench, label: str) -> dict[str, Any]:
    backbone, model = bench.backbone, bench.model
    rows = [row.row for row in bench.rows]
    return {
        "spec": spec.name,
        "digest": spec.digest(),
        **{key: getattr(spec, key) for key in _OF_SPEC},
        "notes": list(spec.notes),
        "dataset": dataset.name,
        "split": dataset.split,
        "images": len(dataset),
        "masks": dataset.masks_from,
        "pictures": dataset.digest(),
        "classes": list(dataset.classes),
        "model": {
            "name": label,
            "id": model.name,
            "family": backbone.family,
            "objective": backbone.objective,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "settings": dict(model.settings),
        },
        "rows": [
            {key: getattr(row.row, key) for key in _OF_ROWS} | {"config": row.config.to_dict()}
            for row in bench.rows
        ],
        "missing": [row.name for row in spec.rows if row not in rows],
        "device": device_name(backbone.device),
        "versions": versions(),
        "git": git_hash(),
    }


def git_hash() -> str | None:
    """The commit of the checkout that this package is run from, or None outside of one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


def check_counts(classes: Sequence[str], counts: Mapping[str, float] | None) -> None:
    """Raise a ValueError unless every class has a count."""
    lacking = [name for name in classes if name not in (counts or {})]
    if lacking:
        raise ValueError(
            f"{len(lacking)} classes have no count, {lacking[0]!r} first; give --counts with a "
            "table that `pixalign bench count` made"
        )
