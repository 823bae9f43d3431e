"""A run in figures: what its images come to, small enough to commit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixalign.bench.groupings import KINDS, Comparison, MeasuredRow, effect, rounded
from pixalign.bench.metrics import (
    Figures,
    Tally,
    bootstrap_weights,
    figures,
    interval,
    nearest_threshold,
)
from pixalign.bench.pairs import correlations, highest_loss
from pixalign.bench.store import HEADER, RESULT, ImageRow, Run
from pixalign.core.files import write_text

PICTURES = 5  # images named best, and as many worst
_COPIED = (
    "spec", "digest", "label", "title", "columns", "baseline", "notes", "extends", "dataset",
    "split", "limit", "images", "masks", "seed", "model", "device", "versions", "git",
)  # fmt: skip

_OF_ROWS = ("method", "baseline", "supervised", "scores", "exponents", "config")


def summarise_run(run: Run, draws: int = 1000) -> dict[str, Any]:
    """Everything that tables, plots and documents need, in JSON-able values and percent.

    Intervals hold 95 % of ``draws`` resamples by image, the same ones for all rows, so that a
    row's effect, its difference to its baseline, is paired.
    """
    header, known = run.header, [row["name"] for row in run.header["rows"]]
    images, tallies = _read(run, known)
    present = {
        row["name"]: row
        for row in header["rows"]
        if images and len(tallies[row["name"]]) == len(images)
    }
    weights = bootstrap_weights(max(len(images), 1), draws)
    measured = {name: _measure(row, tallies.pop(name), weights) for name, row in present.items()}
    bases = {name: row["baseline"] for name, row in present.items() if row["baseline"] != name}
    compared = {
        name: Comparison(own, measured.get(bases.get(name, "")), images, weights)
        for name, own in measured.items()
    }
    focus = _focus(header, list(measured))
    constants = [name for name, row in present.items() if row["scores"] is not None]
    constant = max(constants, key=lambda name: measured[name].figures["oracle"].miou, default=None)
    baseline = measured.get(header["baseline"])
    return {
        "format": 1,
        **{key: header[key] for key in _COPIED},
        "done": len(images),
        "complete": len(images) == header["images"],
        "seconds": round(run.seconds, 2),
        "seconds_per_image": round(run.seconds / len(images), 4) if images else None,
        "row_seconds": {row: round(s / len(images), 4) for row, s in run.row_seconds.items()},
        "draws": draws,
        "missing": header["missing"] + [n for n in known if n not in measured],
        "focus": focus,
        "best_constant": constant,
        "correlations": correlations(
            images, header, baseline.ious("oracle") if baseline else None, weights
        ),
        "highest_loss": highest_loss(images, header),
        **_extremes(images, measured[focus] if focus else None),
        "rows": {
            name: _row(row, compared[name], measured.get(constant or ""), header)
            for name, row in present.items()
        },
    }


def write_result(run: Run, draws: int = 1000) -> dict[str, Any]:
    """Summarise a run into its result.json, unless that is of the same images already."""
    path, source = run.folder / RESULT, _fingerprint(run.folder, draws)
    if path.is_file():
        with suppress(ValueError):  # a damaged one is written anew
            known = read_result(path)
            if known.get("source") == source:
                return known
    result = summarise_run(run, draws) | {"source": source}
    write_text(path, _lines(result))
    return read_result(path)


def read_result(path: Path) -> dict[str, Any]:
    """A result.json."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        number = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error
    if number != 1:
        raise ValueError(f"{str(path)!r} has format {number!r}; allowed: 1")
    return found


def _fingerprint(folder: Path, draws: int) -> str:
    """SHA-256 in hexadecimal of what a result is made from."""
    digest = hashlib.sha256(str(draws).encode())
    for path in [folder / HEADER, *sorted(folder.glob("*.jsonl"))]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _lines(result: Mapping[str, Any]) -> str:
    """JSON with a line for each field and each row."""
    rows = ",\n".join(f"  {_text(name)}: {_text(row)}" for name, row in result["rows"].items())
    fields = [f" {_text(key)}: {_text(value)}" for key, value in result.items() if key != "rows"]
    return "{\n" + ",\n".join([*fields, f' "rows": {{\n{rows}\n }}']) + "\n}\n"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _read(
    run: Run, rows: Sequence[str]
) -> tuple[list[ImageRow], dict[str, list[tuple[Tally, ...]]]]:
    """The images, bare, and each row's tallies under consecutive numbers of images."""
    images: list[ImageRow] = []
    tallies: dict[str, list[tuple[Tally, ...]]] = {row: [] for row in rows}
    for number, image in enumerate(run.images()):
        for row in rows:
            if row in image.tallies:
                again = torch.full_like(image.tallies[row][0].image, number)
                drawn = [dataclasses.replace(tally, image=again) for tally in image.tallies[row]]
                tallies[row].append(tuple(drawn))
        images.append(dataclasses.replace(image, tallies={}))
    return images, tallies


def _measure(
    row: Mapping[str, Any], tallies: Sequence[tuple[Tally, ...]], weights: Tensor
) -> MeasuredRow:
    """What a row's tallies come to; an image with fewer draws has the same in all."""
    count = max(map(len, tallies))
    pooled = tuple(
        Tally.concatenate([drawn[min(draw, len(drawn) - 1)] for drawn in tallies])
        for draw in range(count)
    )
    fixed = nearest_threshold(row["config"]["threshold"])
    made = {
        kind: [figures(tally, weights, threshold) for tally in pooled]
        for kind, threshold in (("oracle", None), ("fixed", fixed))
    }
    return MeasuredRow(
        tallies=pooled,
        figures={kind: _mean_figures(each) for kind, each in made.items()},
        drawn={kind: torch.stack([x for _, x in each]).mean(0) for kind, each in made.items()},
        thresholds={kind: tuple(x.threshold for x, _ in each) for kind, each in made.items()},
    )


def _mean_figures(each: Sequence[tuple[Figures, Tensor]]) -> Figures:
    """The mean over draws of exponents, and the interval of that mean."""
    if len(each) == 1:
        return each[0][0]
    rows = [dataclasses.asdict(found) for found, _ in each]
    mean = {key: math.fsum(row[key] for row in rows) / len(rows) for key in rows[0]}
    low, high = interval(torch.stack([drawn for _, drawn in each]).mean(0))
    return Figures(**mean | {"miou_low": low, "miou_high": high})


def _focus(header: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The row to look at: the baseline if it calibrates, else the last one."""
    if not names:
        return None
    plain = {row["name"] for row in header["rows"] if row["config"]["calibrate"] == "none"}
    baseline: str = header["baseline"]
    return baseline if baseline in names and baseline not in plain else names[-1]


def _row(
    row: Mapping[str, Any], compared: Comparison, constant: MeasuredRow | None, header: Any
) -> dict[str, Any]:
    """What one row comes to, beside its baseline and the best constant score."""
    own, names = compared.own, ("background", *header["classes"])
    return {
        **{key: row[key] for key in _OF_ROWS},
        **{
            kind: {key: rounded(x) for key, x in dataclasses.asdict(own.figures[kind]).items()}
            for kind in KINDS
        },
        "effect": compared.effects(),
        "minus_constant": effect(own.miou("oracle"), constant.miou("oracle")) if constant else None,
        "curve": [rounded(x, 2) for x in own.curve().tolist()],
        "classes": {names[n]: round(iou, 2) for n, iou in own.class_ious("oracle").items()},
        "counts": compared.by_count(),
        "area": compared.by_area(),
        "visible": compared.by_visible_share(),
        "frequency": compared.by_frequency(header),
        "groups": compared.by_dial(),
    }


def _extremes(images: Sequence[ImageRow], row: MeasuredRow | None) -> dict[str, Any]:
    """The keys of the images of highest and of lowest mean IoU over their classes, and these."""
    if row is None:
        return {"best": [], "worst": [], "ious": {}}
    foreground = row.label > 0
    ious, owners = row.ious("oracle")[foreground], row.image[foreground]
    sums = torch.zeros(len(images), dtype=torch.float64).index_add_(0, owners, ious)
    pairs = torch.bincount(owners, minlength=len(images))
    means = (sums / pairs).tolist()
    known = pairs.nonzero()[:, 0].tolist()
    half = (len(known) + 1) // 2
    best = sorted(known, key=lambda n: (-means[n], n))[: min(PICTURES, half)]
    rest = [number for number in known if number not in best]
    worst = sorted(rest, key=lambda n: (means[n], n))[:PICTURES]
    return {
        "best": [images[number].key for number in best],
        "worst": [images[number].key for number in worst],
        "ious": {images[number].key: round(means[number], 2) for number in (*best, *worst)},
    }
