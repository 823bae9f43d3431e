"""Run a spec on a dataset: resumable at any moment, by one process or several."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from pixalign.backbones.fingerprint import fingerprint
from pixalign.bench.datasets import Dataset
from pixalign.bench.found_masks import FoundMasks
from pixalign.bench.measuring import Bench
from pixalign.bench.spec import Spec, paper_model_name
from pixalign.bench.store import Run
from pixalign.bench.subject import Subject
from pixalign.core.files import held_alone
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.methods import METHODS

PATIENCE = timedelta(days=7)  # how long a process that is done waits for the others
CHUNK = 8  # images that are measured together; the results depend on it by rounding only
_OF_SPEC = {"label", "title", "columns", "baseline", "extends", "notes"}
_OF_ROWS = {"name", "method", "baseline", "scores", "exponents", "evidence", "options"}


class OneProcess:
    """The only process of a run, with what is asked of accelerate's state where there are more."""

    process_index, num_processes, is_main_process = 0, 1, True

    def wait_for_everyone(self) -> None:
        """Nobody else is there."""


def launched_process(cpu: bool) -> Any:
    """This process among those that `accelerate launch` started, or alone: accelerate's state."""
    from accelerate import PartialState

    return PartialState(cpu=cpu, timeout=PATIENCE)


def run(
    spec: Spec,
    dataset: Dataset,
    model: AlignmentModel,
    out: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    counts: Mapping[str, float] | None = None,
    process: Any = None,
    show: bool = True,
    save_masks: bool = False,
) -> Run:
    """Every row of a spec on every image of a dataset, in ``out/SPEC--DATASET--MODEL``.

    What is finished is kept as it is; so the same call goes on where an earlier one stopped. Each
    image draws its noise by ``seed`` and its key. A run with other settings is refused. Rows whose
    method does not know the model's kind of attention are missing. ``process`` is this one among
    several: a `launched_process`. ``save_masks`` keeps the masks at each row's fixed threshold.
    """
    ours = process or OneProcess()
    rows = [row for row in spec.rows if METHODS[row.method].reads(model.backbone)]
    if not rows:
        methods = ", ".join(sorted({row.method for row in spec.rows}))
        raise ValueError(
            f"spec {spec.name!r} has no row that can be run on this {model.backbone.family} model; "
            f"its methods are {methods}"
        )
    bench = Bench(rows, model)
    known = counts if counts is not None else dataset.counts()
    if known is not None:
        check_counts(dataset.classes, known)
    asked = {"limit": limit, "seed": seed, "counts": None if known is None else dict(known)}
    header = _header(spec, dataset, bench) | asked
    folder = out / f"{spec.name}--{dataset.name}--{header['model']['name']}"
    with held_alone(folder) if ours.is_main_process else nullcontext():  # the first does so for all
        if ours.is_main_process:
            Run.start(folder, header, dataset)
        ours.wait_for_everyone()
        run = Run.start(folder, header, dataset)
        done = run.done()
        ours.wait_for_everyone()  # nobody writes before everybody has read
        if save_masks:
            bench.masks = FoundMasks(folder, [row.name for row in rows])
        _fill(run, done, bench, dataset, ours, show)
        ours.wait_for_everyone()
        if ours.is_main_process:
            run.merge()
        ours.wait_for_everyone()
    return run


def _fill(
    run: Run, done: set[int], bench: Bench, dataset: Dataset, process: Any, show: bool
) -> None:
    """Measure this process's part of the images that are not done.

    The images that are measured together are the same however often a run is stopped.
    """
    chunks = [range(len(dataset))[first : first + CHUNK] for first in range(0, len(dataset), CHUNK)]
    todo = [chunk for chunk in chunks if not done.issuperset(chunk)]
    part = todo[process.process_index :: process.num_processes]
    title, seed = f"{run.header['spec']} on {dataset.name}", run.header["seed"]
    with Progress(sum(map(len, part)), title, show, "image") as progress:
        for chunk in part:
            started = time.perf_counter()
            subjects = [Subject(dataset[i], i, dataset.classes, seed) for i in chunk]
            measured, spent = bench.measure(subjects)
            fresh = [row for row in measured if row.index not in done]
            run.append(fresh, time.perf_counter() - started, spent, process.process_index)
            progress.advance(len(chunk))


def _header(spec: Spec, dataset: Dataset, bench: Bench) -> dict[str, Any]:
    backbone, model = bench.backbone, bench.model
    plain = re.sub(r"[^\w.-]", "-", Path(model.name).name).strip("-")
    run = [row.name for row in bench.rows]
    return {
        "spec": spec.name,
        "digest": spec.digest(),
        **spec.model_dump(include=_OF_SPEC),
        "dataset": dataset.name,
        "split": dataset.split,
        "images": len(dataset),
        "masks": dataset.masks_from,
        "pictures": dataset.digest(),
        "classes": list(dataset.classes),
        "model": {
            "name": paper_model_name(model.name) or plain or "model",
            "id": model.name,
            "family": backbone.family,
            "objective": backbone.objective,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "settings": dict(model.settings),
            "weights": fingerprint(backbone.pipe),
        },
        "rows": [
            measured.row.model_dump(include=_OF_ROWS)
            | {"supervised": measured.row.supervised, "config": measured.config.to_dict()}
            for measured in bench.rows
        ],
        "missing": [row.name for row in spec.rows if row.name not in run],
        "device": device_name(backbone.device),
        "versions": versions(),
        "git": git_hash(),
    }


def git_hash() -> str | None:
    """The commit of the checkout that this package is run from, or None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        said = subprocess.run(
            [*command, "--abbrev=12"], capture_output=True, text=True, timeout=10, check=True
        )
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
