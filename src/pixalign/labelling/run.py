"""Label a folder: what is finished is kept, and the same call goes on where one was stopped."""

from __future__ import annotations

import csv
import io
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pixalign.config import AlignConfig
from pixalign.core.changes import check_unchanged
from pixalign.core.files import held_alone, make_folder, read_json, sweep, write_json, write_text
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.core.values import Phrase
from pixalign.core.wording import counted
from pixalign.labelling.classes import Lists, PictureClasses
from pixalign.labelling.finished import FinishedRun
from pixalign.labelling.formats import check_formats, write_format
from pixalign.labelling.manifest import Item, Unit, find_pictures, read_pictures, units
from pixalign.labelling.review import Noted, write_queue, write_review
from pixalign.labelling.shards import Shards
from pixalign.labelling.work import Failure, Job, ModelFacts, UnitReport, label_units

_FORMAT = 1
STATE, HEADER, MANIFEST, SHARDS = "run", "run.json", "pictures.jsonl", "shards"


class Labeller(Protocol):
    """What labels units: one process, several, or a cluster."""

    def facts(self, config: AlignConfig) -> ModelFacts:
        """What is to be known of its model."""

    def label(self, job: Job, todo: Sequence[Unit]) -> Iterator[UnitReport]:
        """Write the units' shards, in any order."""


@dataclass(frozen=True)
class OneProcess:
    """A model that labels one unit after the other."""

    model: AlignmentModel

    def facts(self, config: AlignConfig) -> ModelFacts:
        """Those of the model."""
        return ModelFacts.of(self.model, config)

    def label(self, job: Job, todo: Sequence[Unit]) -> Iterator[UnitReport]:
        """In their order."""
        return label_units(self.model, job, todo)


@dataclass(frozen=True)
class LabelRequest:
    """What to label: a folder, and the classes of all its pictures.

    ``lists`` by key take their place where pictures have classes and seeds of their own; pictures
    that it does not name are left alone. ``candidates`` as in `pixalign.labelling.work.Job`.
    """

    folder: Path
    classes: tuple[Phrase, ...] = ()
    lists: Lists | None = None
    config: AlignConfig = field(default_factory=AlignConfig)
    seed: int = 0
    candidates: int | None = 16

    def items(self, out: Path, show: bool) -> list[Item]:
        """What there is to label; files are read, unless an earlier run knows them."""
        paths = find_pictures(self.folder, besides=out)
        if self.lists is not None:
            missing = [key for key in self.lists if key not in paths]
            if missing:
                raise FileNotFoundError(
                    f"{counted(len(missing), 'picture')} of the list not found below "
                    f"{str(self.folder)!r}, {missing[0]!r} first"
                )
            paths = {key: path for key, path in paths.items() if key in self.lists}
        pictures = read_pictures(paths, out / STATE / MANIFEST, show)
        own = self.lists or {}
        given = [own.get(picture.key, PictureClasses(self.classes)) for picture in pictures]
        return [
            Item(picture, classes.phrases, self.seed if classes.seed is None else classes.seed)
            for picture, classes in zip(pictures, given, strict=True)
        ]

    def header(self, facts: ModelFacts) -> dict[str, Any]:
        """What the labels depend on, as plain values."""
        names = {phrase.name: phrase.phrase for phrase in self.classes}
        about = {
            "format": _FORMAT,
            **facts.record,
            "classes": names if self.lists is None else "by picture",
            "seed": self.seed,
            "candidates": self.candidates,
        }
        plain: dict[str, Any] = json.loads(json.dumps(about))
        return plain


@dataclass(frozen=True)
class Outputs:
    """What is made of labels: formats by name, and how objects are told apart.

    ``min_area`` and ``instances`` are those of `find_segments`. ``queue`` copies so many of the
    most doubtful pictures.
    """

    formats: tuple[str, ...] = ()
    min_area: int = 0
    instances: bool = True
    queue: int = 0

    def write(self, run: FinishedRun, out: Path, show: bool) -> dict[str, Any]:
        """Write the formats and what helps to review; what is to be said of them."""
        notes, pictures = {}, Noted(run)
        with Progress(len(self.formats) + 1, "writing", show, "format") as progress:
            for name in self.formats:
                notes[name] = write_format(name, pictures, out / name)
                progress.advance(1)
            rows = pictures.by_doubt()
            write_review(run, rows, out)
            if self.queue:
                write_queue(run, rows, self.queue, out)
            progress.advance(1)
        counts = Counter(name for row in rows for name in row.classes)
        return {
            "pictures": len(run),
            "objects": sum(row.objects for row in rows),
            "pictures_by_class": {name: counts[name] for name in run.classes},
            "nothing_found": sum(not row.classes for row in rows),
            "in_doubt": sum(bool(row.doubts) for row in rows),
            "formats": notes,
        }


@dataclass(frozen=True)
class LabelRun:
    """What a call has done: the pictures that are labelled now, and those that could not be.

    ``summary`` is what summary.json says.
    """

    finished: FinishedRun
    failures: tuple[Failure, ...]
    summary: Mapping[str, Any]


def label_folder(
    labeller: Labeller,
    request: LabelRequest,
    out: Path,
    outputs: Outputs = Outputs(),  # noqa: B008
    *,
    strict: bool = False,
    show: bool = False,
) -> LabelRun:
    """Label a folder's pictures; ``out`` keeps what is finished in its folder "run".

    A run with other settings is refused. ``strict`` makes a picture that fails an error.
    """
    check_formats(outputs.formats)
    state = make_folder(out) / STATE
    with held_alone(state):
        facts = labeller.facts(request.config)
        header = request.header(facts)
        _start(state / HEADER, header)
        job = Job(request.config, request.candidates, make_folder(state / SHARDS))
        for folder in (out, state, job.shards):  # nobody else writes there now
            sweep(folder, older=0)
        items = request.items(out, show)
        before = Shards(job.shards)
        todo = units(items, facts.sizes, request.config.resize, facts.together, before)
        started = time.perf_counter()
        failures = _label(labeller, job, todo, strict, show)
        seconds = time.perf_counter() - started
        about = {**header, "instances": outputs.instances, "versions": versions()}
        shards = Shards(job.shards) if todo else before
        run = FinishedRun(items, shards, about, outputs.min_area, outputs.instances)
        done = len(shards.places) - len(before.places)
        summary = {
            **outputs.write(run, out, show),
            "labelled_now": done,
            "seconds": round(seconds, 3),
            "pictures_a_second": round(done / seconds, 3) if done else None,
            "failed": len(failures),
            "damaged_shards": before.damaged,
        }
        _write_failures(out / "failed.csv", failures)
        write_json(out / "summary.json", summary)
    return LabelRun(run, tuple(failures), summary)


def _label(
    labeller: Labeller, job: Job, todo: Sequence[Unit], strict: bool, show: bool
) -> list[Failure]:
    failures: list[Failure] = []
    waiting = sum(len(unit.items) for unit in todo)
    with Progress(waiting, "labelling", show, "picture") as progress:
        for report in labeller.label(job, todo):
            failures += report.failures
            progress.advance(len(report.unit.items))
            if strict and failures:
                raise ValueError(f"{failures[0].key}: {failures[0].reason}")
    return failures


def _write_failures(path: Path, failures: Sequence[Failure]) -> None:
    """The pictures that failed and why; without any there is no file."""
    if not failures:
        path.unlink(missing_ok=True)
        return
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("image", "reason"))
    writer.writerows((failure.key, failure.reason) for failure in failures)
    write_text(path, table.getvalue())


def _start(path: Path, header: Mapping[str, Any]) -> None:
    """Note what the labels depend on, or see that it is as it was."""
    if not path.exists():
        write_text(path, json.dumps(header, indent=1) + "\n")
        return
    try:
        there = read_json(path)
        if not isinstance(there, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error
    check_unchanged(there, header, path.parent.parent, "labels")
