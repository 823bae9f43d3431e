"""`audit`: what models know, from pictures with masks, pictures without, or prompts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pixalign.audit.comparing import compared
from pixalign.audit.figures import (
    RANKED,
    Figures,
    confused_pixels,
    entry,
    picture_figures,
    prompt_figures,
    resamples,
)
from pixalign.audit.records import METHODS, Record
from pixalign.audit.report import write_page
from pixalign.audit.sources import MaskedPictures, Prompts, Source
from pixalign.audit.store import Kept
from pixalign.backbones.fingerprint import fingerprint
from pixalign.config import AlignConfig
from pixalign.core.checks import check_choice, check_seed
from pixalign.core.files import held_alone, make_folder, slug, write_json
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.methods.dense import Dense
from pixalign.pictures.saving import write_png

VERSION = 2  # of audit.json and of the records
Subjects = Mapping[str, AlignmentModel | Callable[[], AlignmentModel]]


def audit(
    subjects: Subjects,
    source: Source,
    out: str | os.PathLike[str],
    *,
    config: AlignConfig | None = None,
    seed: int = 0,
    show: bool = False,
) -> dict[str, Any]:
    """Ask each subject about all pictures of a source, and write audit.json and report.html.

    ``subjects`` are models by name, or functions that load them, called one after the other. The
    first is what the others are compared with. Records of pictures are kept below ``out``/run, so
    that the same call goes on where one was stopped. Gives what audit.json holds.
    """
    config = config or AlignConfig()
    check_choice("method of an audit", config.method, (None, Dense.name))
    check_seed(seed)
    if not subjects:
        raise ValueError("there is no model to audit; allowed: 1 or more")
    folder = make_folder(out)
    with held_alone(folder / "run"):
        made = {
            name: _measured(name, subject, source, folder, config, seed, show)
            for name, subject in subjects.items()
        }
        document = _document(made, source, seed)
        write_page(document, {name: records for name, (_, records) in made.items()}, folder)
        write_json(folder / "audit.json", document)
    return document


def _measured(
    name: str,
    subject: AlignmentModel | Callable[[], AlignmentModel],
    source: Source,
    out: Path,
    config: AlignConfig,
    seed: int,
    show: bool,
) -> tuple[dict[str, Any], list[Record]]:
    """What is known of the model, and the record of each picture."""
    model = subject() if callable(subject) else subject
    resolved = {kind.name: model.resolve(config, kind.name) for kind in METHODS}
    about = {
        "model": model.record(),
        "weights": fingerprint(model.backbone.pipe),
        "config": resolved[Dense.name].to_dict(),
        "thresholds": {name: own.threshold for name, own in resolved.items()},
    }
    asked = {"version": VERSION, "kind": source.kind, **source.about(), **about, "seed": seed}
    asked["model"] = {k: v for k, v in asked["model"].items() if k != "device"}
    kept = Kept(out, name, asked)
    records = []
    with Progress(len(source.keys), f"audit of {name}", show, "picture") as progress:
        for index, key in enumerate(source.keys):
            record = kept.read(index, key)
            if record is None or not _finished(record, out):
                record = {"key": key, **source.record(model, index, config, seed)}
                picture = record.pop("picture", None)
                if picture is not None:
                    place = make_folder(out / "pictures" / kept.folder.name)
                    path = write_png(place / f"{index:05d}-{slug(key)}.png", picture)
                    record["file"] = path.relative_to(out).as_posix()
                kept.write(index, record)
            records.append(record)
            progress.advance(1)
    own_bounds = "absent_below" in model.settings
    return about | {"device": device_name(model.backbone.device), "own_bounds": own_bounds}, records


def _finished(record: Record, out: Path) -> bool:
    """Whether a record needs no further work, and the picture that was drawn for it lies there."""
    return "failed" not in record and ("file" not in record or (out / record["file"]).is_file())


def _document(
    made: Mapping[str, tuple[dict[str, Any], list[Record]]], source: Source, seed: int
) -> dict[str, Any]:
    whole = [  # what every subject could be asked
        place
        for place in range(len(source.keys))
        if not any("failed" in records[place] for _, records in made.values())
    ]
    failed = _failed(made, source.keys)
    if not whole:
        key, why = next(iter(failed.items()), ("", "there are none"))
        raise ValueError(f"no picture could be audited; {key!r}: {why}")
    weights = resamples([source.groups[place] for place in whole])
    counts = source.counts if isinstance(source, MaskedPictures) else None
    figures: dict[str, Figures] = {}
    subjects = []
    for name, (about, records) in made.items():
        used = [records[place] for place in whole]
        if isinstance(source, Prompts):
            figures[name] = prompt_figures(used, weights)
        else:
            figures[name] = picture_figures(used, weights, counts)
        subjects.append({"name": name, **about, **_subject(figures[name], used)})
    first, *others = figures
    return {
        "version": VERSION,
        "kind": source.kind,
        "source": source.about(),
        "pictures": len(whole),
        "failed": failed,
        "seed": seed,
        "ranked_by": RANKED,
        "subjects": subjects,
        "comparisons": [
            {"from": first, "to": other, **compared(figures[first], figures[other])}
            for other in others
        ],
        "versions": versions(),
    }


def _failed(
    made: Mapping[str, tuple[dict[str, Any], list[Record]]], keys: Sequence[str]
) -> dict[str, str]:
    """Pictures that are in none of the figures, and why."""
    said = {}
    for place, key in enumerate(keys):
        why = [r[place]["failed"] for _, r in made.values() if "failed" in r[place]]
        if why:
            said[key] = why[0]
    return said


def _subject(figures: Figures, records: Sequence[Record]) -> dict[str, Any]:
    """A subject's figures as JSON-able values."""
    classes = [
        {"name": name, **figures.counts[name], **{k: entry(v) for k, v in own.items()}}
        for name, own in figures.classes.items()
    ]
    made: dict[str, Any] = {
        "overall": {name: entry(value) for name, value in figures.overall.items()},
        "classes": classes,
        "layers": {name: entry(value) for name, value in figures.layers.items()},
        "groups": {
            title: {
                group: {name: entry(value) for name, value in values.items()}
                for group, values in groups.items()
            }
            for title, groups in figures.groups.items()
        },
    }
    if records and all("pixels" in record for record in records):
        made["confusion"] = {kind.name: confused_pixels(records, kind.name) for kind in METHODS}
    return made
