"""What ``pixalign bench`` does: everything is checked before a model is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pixalign.backbones.load import hide_loading_bars, resolve_device
from pixalign.bench.datasets import DATASETS, Dataset, check, find_datasets, open_dataset
from pixalign.bench.datasets.captions import load_counts
from pixalign.bench.datasets.sample import class_list, class_lists
from pixalign.bench.examples import draw_examples
from pixalign.bench.runner import check_counts, launched_process, run
from pixalign.bench.spec import Spec, load_spec, spec_names
from pixalign.bench.summary import write_result
from pixalign.core.checks import check_choice
from pixalign.core.protocols import AlignmentModel

SpecRun = tuple[Spec, Dataset, Mapping[str, float] | None]  # on one dataset, with its counts


def run_specs(
    names: Sequence[str],
    load_model: Callable[[str], AlignmentModel],
    *,
    root: Path | None = None,
    datasets: Sequence[str] = (),
    limit: int | None = None,
    out: Path,
    counts: Path | None = None,
    seed: int = 0,
    device: str = "auto",
    show: bool = True,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run specs on their datasets with one model; gives each run's folder and result.

    ``load_model`` is called once, with the device of this process, when all else is known to be
    right.
    """
    chosen = resolve_device(device)
    planned = list(_spec_runs(find_specs(names), root, datasets, limit, counts))
    process = launched_process(cpu=chosen.type != "cuda")
    if process.num_processes > 1 and str(chosen) == "cuda":
        device = f"cuda:{process.local_process_index}"
    hide_loading_bars()
    model = load_model(device)
    for spec, dataset, known in planned:
        options: dict[str, Any] = {"limit": limit, "seed": seed, "counts": known}
        seen = show and process.is_main_process
        finished = run(spec, dataset, model, out, process=process, show=seen, **options)
        if process.is_main_process:
            result = write_result(finished)
            draw_examples(finished, result, spec, dataset, model)
            yield finished.folder, result
        process.wait_for_everyone()


def find_specs(names: Sequence[str]) -> list[Spec]:
    """The specs of some names, files or patterns, each once."""
    specs: dict[str, Spec] = {}
    for name in names:
        for matching in [n for n in spec_names() if fnmatchcase(n, name)] or [name]:
            specs.setdefault(matching, load_spec(matching))
    return list(specs.values())


def _spec_runs(
    specs: Sequence[Spec],
    root: Path | None,
    datasets: Sequence[str],
    limit: int | None,
    counts: Path | None,
) -> Iterator[SpecRun]:
    """Every spec on every dataset that is asked for, with the files known to be there."""
    for name in datasets:
        check_choice("dataset", name, tuple(DATASETS))
    for spec in specs:
        chosen = [name for name in spec.datasets if not datasets or name in datasets]
        if not chosen:
            raise ValueError(
                f"spec {spec.name!r} is for {', '.join(spec.datasets)}, not {', '.join(datasets)}"
            )
        for name in chosen:
            dataset = open_dataset(name, root, spec.split, limit)
            table = load_counts(counts, dataset.classes) if counts is not None else None
            known = table if table is not None else dataset.counts()
            if spec.columns == "frequency":
                check_counts(dataset.classes, known)
            yield spec, dataset, known


def listing() -> list[dict[str, Any]]:
    """The specs that come with the package."""
    return [
        spec.model_dump(include={"name", "label", "title"})
        | {"datasets": list(spec.datasets), "rows": len(spec.rows)}
        for spec in map(load_spec, spec_names())
    ]


def check_root(
    root: Path, names: Sequence[str], split: str | None, limit: int | None
) -> Iterator[dict[str, Any]]:
    """What stands under a root, dataset by dataset; the first fault is an error."""
    chosen = list(names) or find_datasets(root)
    if not chosen:
        known = ", ".join(DATASETS)
        raise ValueError(f"no dataset was found below {str(root)!r}; known are {known}")
    for name in chosen:
        dataset = open_dataset(name, root, split, limit)
        yield dataclasses.asdict(check(dataset, progress=True))


def class_names(text: str) -> tuple[str, ...]:
    """The classes of a dataset, or the lines of a file."""
    shipped = class_lists()
    if text in shipped:
        return class_list(text)
    path = Path(text)
    if not path.is_file():
        raise FileNotFoundError(f"classes is {text!r}; allowed: a file, or {', '.join(shipped)}")
    return tuple(filter(None, map(str.strip, path.read_text(encoding="utf-8").splitlines())))
