"""A run in figures: what its images come to, small enough to commit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
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
from pixalign.core.files import read_json, write_text

PICTURES = 5  # images named best, and as many worst
_COPIED = (
    "spec", "digest", "label", "title", "columns", "baseline", "notes", "extends", "dataset",
    "split", "limit", "images", "masks", "seed", "model", "device", "versions", "git",
)  # fmt: skip

_OF_ROWS = ("method", "baseline", "supervised", "scores", "exponents", "config")
LOST, FOUND = 10, 30  # percent of IoU


def summarise_run(run: Run, draws: int = 1000) -> dict[str, Any]:
    """Everything that tables, plots and documents need, in JSON-able values and percent.

    Intervals hold 95 % of ``draws`` resamples by image, the same ones for all rows, so that a
    row's effect, its difference to its baseline, is paired.
    """
    header, known = run.header, {row["name"]: row for row in run.header["rows"]}
    images: list[ImageRow] = []
    tallies: dict[str, list[tuple[Tally, ...]]] = {name: [] for name in known}
    for image in run.images():
        for name in known.keys() & image.tallies.keys():
            tallies[name].append(image.tallies[name])
        images.append(dataclasses.replace(image, tallies={}))
    present = {n: row for n, row in known.items() if images and len(tallies[n]) == len(images)}
    weights = bootstrap_weights(max(len(images), 1), draws)
    measured = {name: _measure(row, tallies.pop(name), weights) for name, row in present.items()}
    calibrated = [name for name, row in present.items() if row["config"]["calibrate"] != "none"]
    # The row to look at: the baseline if it calibrates, else the last one.
    last = next(reversed(present), None)
    focus = header["baseline"] if header["baseline"] in calibrated else last
    constants = [name for name, row in present.items() if row["scores"] is not None]
    constant = max(constants, key=lambda name: measured[name].figures["oracle"].miou, default=None)
    rows = {}
    for name, row in present.items():
        base = measured.get(row["baseline"]) if row["baseline"] != name else None
        compared = Comparison(measured[name], base, images, weights)
        rows[name] = _row(row, compared, measured.get(constant or ""), header)
    shared = measured.get(header["baseline"])
    ious = shared.ious("oracle") if shared else None
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
        "correlations": correlations(images, header, ious, weights),
        "highest_loss": highest_loss(images, header),
        "found_again": found_again(measured, present),
        **_extremes(images, measured[focus] if focus else None),
        "rows": rows,
    }


def write_result(run: Run, draws: int = 1000) -> dict[str, Any]:
    """Summarise a run into its result.json, unless that is of the same images already."""
    path, source = run.folder / RESULT, _fingerprint(run.folder, draws)
    with suppress(FileNotFoundError, ValueError):  # a damaged one is written anew
        known = read_result(path)
        if known.get("source") == source:
            return known
    result = summarise_run(run, draws) | {"source": source}
    write_text(path, _lines(result))
    return read_result(path)


def read_result(path: Path) -> dict[str, Any]:
    """A result.json."""
    try:
        result: dict[str, Any] = read_json(path)
        number = result["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error
    if number != 1:
        raise ValueError(f"{str(path)!r} has format {number!r}; allowed: 1")
    return result


def _fingerprint(folder: Path, draws: int) -> str:
    """SHA-256 in hexadecimal of what a result is made from."""
    digest = hashlib.sha256(str(draws).encode())
    for path in [folder / HEADER, *sorted(folder.glob("*.jsonl"))]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _lines(result: Mapping[str, Any]) -> str:
    """JSON with a line for each field and each row."""
    text = partial(json.dumps, ensure_ascii=False, allow_nan=False)
    rows = ",\n".join(f"  {text(name)}: {text(row)}" for name, row in result["rows"].items())
    fields = [f" {text(key)}: {text(value)}" for key, value in result.items() if key != "rows"]
    return "{\n" + ",\n".join([*fields, f' "rows": {{\n{rows}\n }}']) + "\n}\n"


def _measure(
    row: Mapping[str, Any], tallies: Sequence[tuple[Tally, ...]], weights: Tensor
) -> MeasuredRow:
    """What a row's tallies by image come to, as means over the draws of its exponents.

    The images are numbered from 0; one with fewer draws has the same in all.
    """
    sizes = torch.tensor([len(drawn[0].image) for drawn in tallies])
    images = torch.arange(len(tallies)).repeat_interleave(sizes)
    pooled = []
    for draw in range(max(map(len, tallies))):
        tally = Tally.concatenate([drawn[min(draw, len(drawn) - 1)] for drawn in tallies])
        pooled.append(dataclasses.replace(tally, image=images))
    means, resampled, thresholds = {}, {}, {}
    fixed = nearest_threshold(row["config"]["threshold"])
    for kind, threshold in zip(KINDS, (None, fixed), strict=True):
        each, weighted = zip(*(figures(x, weights, threshold) for x in pooled), strict=True)
        resampled[kind] = torch.stack(weighted).mean(0)
        low, high = interval(resampled[kind])
        values = [dataclasses.asdict(figure) for figure in each]
        mean = {key: math.fsum(x[key] for x in values) / len(values) for key in values[0]}
        means[kind] = Figures(**mean | {"miou_low": low, "miou_high": high})
        thresholds[kind] = tuple(figure.threshold for figure in each)
    return MeasuredRow(tuple(pooled), means, resampled, thresholds)


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


def found_again(
    measured: Mapping[str, MeasuredRow], rows: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Of the classes that plain attention loses in a picture, how many each row finds.

    Lost is an IoU below `LOST` percent, found one above `FOUND`, each at the row's best threshold.
    """
    plain = next((name for name, row in rows.items() if row["method"] == "attention"), None)
    if plain is None:
        return None
    lost = (measured[plain].label > 0) & (measured[plain].ious("oracle") < LOST)
    again = {name: int((own.ious("oracle")[lost] > FOUND).sum()) for name, own in measured.items()}
    return {"row": plain, "lost": int(lost.sum()), "found": again}


def _extremes(images: Sequence[ImageRow], row: MeasuredRow | None) -> dict[str, Any]:
    """The keys of the images of highest and of lowest mean IoU over their classes, and these."""
    if row is None:
        return {"best": [], "worst": [], "ious": {}}
    ious: dict[str, list[float]] = {}
    shown = row.label > 0
    pairs = zip(row.image[shown].tolist(), row.ious("oracle")[shown].tolist(), strict=True)
    for number, iou in pairs:
        ious.setdefault(images[number].key, []).append(iou)
    means = {key: sum(each) / len(each) for key, each in ious.items()}
    best = sorted(means, key=lambda key: -means[key])[: min(PICTURES, (len(means) + 1) // 2)]
    rest = [key for key in means if key not in best]
    worst = sorted(rest, key=lambda key: means[key])[:PICTURES]
    named = {key: round(means[key], 2) for key in (*best, *worst)}
    return {"best": best, "worst": worst, "ious": named}
