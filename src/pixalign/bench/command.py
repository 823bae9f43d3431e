"""What ``pixalign bench`` does: everything is checked before a model is loaded."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pixalign.backbones.load import hide_loading_bars, resolve_device
from pixalign.bench.datasets import (
    DATASETS,
    Dataset,
    check,
    find_datasets,
    near_misses,
    open_dataset,
)
from pixalign.bench.datasets.captions import load_counts
from pixalign.bench.datasets.sample import class_list, class_lists
from pixalign.bench.examples import draw_examples
from pixalign.bench.runner import check_counts, launched_process, run
from pixalign.bench.spec import Spec, load_spec, spec_names
from pixalign.bench.summary import write_result
from pixalign.core.files import check_folder, read_text
from pixalign.core.protocols import AlignmentModel


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
    save_masks: bool = False,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run specs on their datasets with one model; gives each run's folder and result.

    ``load_model`` is called once, with the device of this process, when all else is known to be
    right.
    """
    chosen = resolve_device(device)
    check_folder(out)
    planned = [
        (spec, dataset, _counts(spec, dataset, counts))
        for spec in find_specs(names)
        for dataset in _open(spec, datasets, root, limit)
    ]
    process = launched_process(cpu=chosen.type != "cuda")
    if process.num_processes > 1 and str(chosen) == "cuda":
        device = f"cuda:{process.local_process_index}"
    hide_loading_bars()
    model = load_model(device)
    for spec, dataset, known in planned:
        options: dict[str, Any] = {"limit": limit, "seed": seed, "counts": known}
        options |= {
            "save_masks": save_masks,
            "process": process,
            "show": show and process.is_main_process,
        }
        finished = run(spec, dataset, model, out, **options)
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


def _open(spec: Spec, names: Sequence[str], root: Path | None, limit: int | None) -> list[Dataset]:
    """The spec's datasets that are asked for, with the files known to be there."""
    chosen = [name for name in spec.datasets if not names or name in names]
    if not chosen:
        raise ValueError(
            f"spec {spec.name!r} is for {', '.join(spec.datasets)}, not {', '.join(names)}"
        )
    datasets, missing = [], []
    for name in chosen:
        try:
            datasets.append(open_dataset(name, root, spec.split, limit))
        except FileNotFoundError as error:  # the others are run, unless this one was asked for
            if names or len(chosen) == 1:
                raise
            missing.append(f"{name} is not run: {error}")
    if not datasets:
        raise FileNotFoundError("; ".join(missing))
    for message in missing:
        warnings.warn(message, UserWarning, stacklevel=4)
    return datasets


def _counts(spec: Spec, dataset: Dataset, path: Path | None) -> Mapping[str, float] | None:
    """How often training showed each class, where that is known; some specs need it."""
    counts = dataset.counts() if path is None else load_counts(path, dataset.classes)
    if spec.columns == "frequency":
        check_counts(dataset.classes, counts)
    return counts


def check_root(
    root: Path, names: Sequence[str], split: str | None, limit: int | None, decode: bool = False
) -> Iterator[dict[str, Any]]:
    """What stands under a root, dataset by dataset; "problems" are texts, none where all is well.

    Datasets of which a part alone is there, or that cannot be opened, have nothing but these.
    """
    missed = {} if names else near_misses(root)
    chosen = list(names) or find_datasets(root)
    if not chosen and not missed:
        known = ", ".join(DATASETS)
        raise ValueError(f"no dataset was found below {str(root)!r}; known are {known}")
    for name in chosen:
        try:
            dataset = open_dataset(name, root, split, limit)
        except (ValueError, OSError) as error:
            missed[name] = str(error)
            continue
        yield dataclasses.asdict(check(dataset, progress=True, decode=decode))
    for name, problem in missed.items():
        yield {"name": name, "problems": (problem,)}


def class_names(text: str) -> tuple[str, ...]:
    """The classes of a dataset, or the lines of a file."""
    shipped = class_lists()
    if text in shipped:
        return class_list(text)
    path = Path(text)
    if not path.is_file():
        raise FileNotFoundError(f"classes is {text!r}; allowed: a file, or {', '.join(shipped)}")
    return tuple(filter(None, map(str.strip, read_text(path).splitlines())))
