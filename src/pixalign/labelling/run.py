"""Label a folder: what is finished is kept, and the same call goes on where one was stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pixalign.config import AlignConfig
from pixalign.core.changes import check_unchanged
from pixalign.core.files import held_alone, make_folder, write_text
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.core.values import Phrase
from pixalign.labelling.finished import FinishedRun
from pixalign.labelling.manifest import Item, Unit, find_pictures, read_pictures, units
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
    lists: Mapping[str, tuple[tuple[Phrase, ...], int]] | None = None
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
                    f"{len(missing)} pictures of the list are not below {str(self.folder)!r}, "
                    f"{missing[0]!r} first"
                )
            paths = {key: path for key, path in paths.items() if key in self.lists}
        pictures = read_pictures(paths, out / STATE / MANIFEST, show)
        common = self.classes, self.seed
        return [
            Item(picture, *(common if self.lists is None else self.lists[picture.key]))
            for picture in pictures
        ]

    def header(self, facts: ModelFacts) -> dict[str, Any]:
        """What the labels depend on, as plain values."""
        by_picture = self.lists is not None
        names = None if by_picture else [[phrase.name, phrase.phrase] for phrase in self.classes]
        about = {
            "format": _FORMAT,
            **facts.record,
            "classes": names,
            "seed": None if by_picture else self.seed,
            "candidates": self.candidates,
        }
        plain: dict[str, Any] = json.loads(json.dumps(about))
        return plain


@dataclass(frozen=True)
class LabelRun:
    """What a call has done: what is labelled now, what could not be, and the seconds it took.

    ``done`` counts pictures that this call labelled, ``before`` those that were finished already.
    """

    finished: FinishedRun
    failures: tuple[Failure, ...]
    damaged: tuple[str, ...]
    done: int
    before: int
    seconds: float


def label_folder(
    labeller: Labeller,
    request: LabelRequest,
    out: Path,
    *,
    min_area: int = 0,
    instances: bool = True,
    strict: bool = False,
    show: bool = False,
) -> LabelRun:
    """Label a folder's pictures; ``out`` keeps what is finished in its folder "run".

    A run with other settings is refused. ``strict`` makes a picture that fails an error.
    """
    with held_alone(make_folder(out) / STATE):
        shards = make_folder(out / STATE / SHARDS)
        facts = labeller.facts(request.config)
        header = request.header(facts)
        _start(out / STATE / HEADER, header)
        for leftover in shards.glob(".*.npz.*"):  # of a process that was killed while it wrote
            leftover.unlink()
        items = request.items(out, show)
        before = Shards(shards)
        todo = units(items, facts.sizes, request.config.resize, before)
        job = Job(request.config, request.candidates, shards)
        waiting = sum(len(unit.items) for unit in todo)
        failures: list[Failure] = []
        started, done = time.perf_counter(), 0
        with Progress(waiting, "labelling", show, "picture") as progress:
            for report in labeller.label(job, todo):
                failures += report.failures
                done += len(report.done)
                progress.advance(len(report.unit.items))
                if strict and failures:
                    raise ValueError(f"{failures[0].key}: {failures[0].reason}")
        seconds = time.perf_counter() - started
        about = {**header, "versions": versions()}
        finished = FinishedRun(items, Shards(shards), about, min_area, instances)
    return LabelRun(
        finished, tuple(failures), tuple(before.damaged), done, len(finished) - done, seconds
    )


def _start(path: Path, header: Mapping[str, Any]) -> None:
    """Note what the labels depend on, or see that it is as it was."""
    if not path.is_file():
        write_text(path, json.dumps(header, indent=1) + "\n")
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error
    check_unchanged(there, header, path.parent.parent, "labels")
