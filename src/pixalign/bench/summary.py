"""A run in figures: what its images come to, small enough to commit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixalign.bench.metrics import (
    Figures,
    Tally,
    bootstrap_weights,
    class_ious,
    curve,
    equal_parts,
    figures,
    interval,
    nearest_threshold,
    pair_means,
    tertiles,
)
from pixalign.bench.pairs import correlations, highest_loss
from pixalign.bench.store import HEADER, RESULT, ImageRow, Run, write_text

KINDS = ("oracle", "fixed")  # the best threshold on the images themselves; the config's
TENTHS = 10  # buckets of pairs by area
VISIBLE = (0.0, 0.5, 0.75, 0.95, 1.0)  # edges of the buckets of pairs by visible share
PICTURES = 5  # images named best, and as many worst
_COPIED = (
    "spec", "digest", "label", "title", "columns", "baseline", "notes", "extends", "dataset",
    "split", "limit", "images", "masks", "seed", "model", "device", "versions", "git",
)  # fmt: skip

_OF_ROWS = ("method", "baseline", "supervised", "scores", "exponents", "config")

Resampled = tuple[float, Tensor]  # a value in percent, and the same under each weighting [B]


@dataclass(frozen=True, eq=False)
class _Measured:
    """One row: its pooled pixels under each draw of its exponents, and what they come to by kind.

    ``thresholds`` are those of the draws. All values are means over the draws.
    """

    tallies: tuple[Tally, ...]
    figures: Mapping[str, Figures]
    drawn: Mapping[str, Tensor]
    thresholds: Mapping[str, tuple[float, ...]]

    @property
    def image(self) -> Tensor:
        """int64 [R]: the pairs' images."""
        return self.tallies[0].image

    @property
    def label(self) -> Tensor:
        """int64 [R]: the pairs' classes, 0 for the background."""
        return self.tallies[0].label

    def _at(self, kind: str) -> list[tuple[Tally, float]]:
        return list(zip(self.tallies, self.thresholds[kind], strict=True))

    def ious(self, kind: str) -> Tensor:
        """float64 [R]: each pair's IoU in percent."""
        each = [100 * tally.at(threshold).ious()[:, 0] for tally, threshold in self._at(kind)]
        return torch.stack(each).mean(0)

    def class_ious(self, kind: str) -> dict[int, float]:
        """The pooled IoU in percent of each class that has any pixel."""
        each = [class_ious(tally, threshold) for tally, threshold in self._at(kind)]
        labels = sorted({label for ious in each for label in ious})
        return {
            label: 100 * math.fsum(ious.get(label, 0.0) for ious in each) / len(each)
            for label in labels
        }

    def curve(self) -> Tensor:
        """float64 [T]: the mIoU in percent at every threshold."""
        return 100 * torch.stack([curve(tally).miou[0] for tally in self.tallies]).mean(0)

    def miou(self, kind: str) -> Resampled:
        """The row's mIoU."""
        return self.figures[kind].miou, self.drawn[kind]

    def pairs(self, kind: str, chosen: Tensor, weights: Tensor) -> Resampled:
        """The mean IoU of the pairs where bool [R] is true."""
        ious = self.ious(kind)[chosen]
        return float(ious.mean()), pair_means(ious, self.image[chosen], weights)

    def classes(self, kind: str, chosen: Tensor, weights: Tensor) -> Resampled:
        """The mean over classes of the pooled IoU of the rows where bool [R] is true."""
        each = [figures(tally.select(chosen), weights, at) for tally, at in self._at(kind)]
        miou = math.fsum(found.miou for found, _ in each) / len(each)
        return miou, torch.stack([drawn for _, drawn in each]).mean(0)


How = Callable[[_Measured, str, Tensor, Tensor], Resampled]  # `_Measured.pairs` or `.classes`


def summarise(run: Run, draws: int = 1000) -> dict[str, Any]:
    """Everything that tables, plots and documents need, in JSON-able values and percent.

    Intervals hold 95 % of ``draws`` resamples by image, the same ones for all rows, so that a
    row's effect, its difference to its baseline, is paired.
    """
    header, known = run.header, [row["name"] for row in run.header["rows"]]
    images, tallies = _read(run, known)
    present = [row for row in header["rows"] if images and len(tallies[row["name"]]) == len(images)]
    weights = bootstrap_weights(max(len(images), 1), draws)
    measured = {row["name"]: _measure(row, tallies.pop(row["name"]), weights) for row in present}
    focus = _focus(header, list(measured))
    constants = [row["name"] for row in present if row["scores"] is not None]
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
            row["name"]: _row(row, measured, constant, header, images, weights) for row in present
        },
    }  # fmt: skip


def write_result(run: Run, draws: int = 1000) -> dict[str, Any]:
    """Summarise a run into its result.json, unless that is of the same images already."""
    path, source = run.folder / RESULT, _fingerprint(run.folder, draws)
    if path.is_file():
        with suppress(ValueError):  # a damaged one is written anew
            known = read_result(path)
            if known.get("source") == source:
                return known
    result = summarise(run, draws) | {"source": source}
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
) -> _Measured:
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
    return _Measured(
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
    row: Mapping[str, Any],
    measured: Mapping[str, _Measured],
    constant: str | None,
    header: Mapping[str, Any],
    images: Sequence[ImageRow],
    weights: Tensor,
) -> dict[str, Any]:
    """What one row comes to, beside its baseline."""
    own = measured[row["name"]]
    base = measured.get(row["baseline"]) if row["baseline"] != row["name"] else None
    names = ("background", *header["classes"])
    return {
        **{key: row[key] for key in _OF_ROWS},
        **{
            kind: {key: _rounded(x) for key, x in dataclasses.asdict(own.figures[kind]).items()}
            for kind in KINDS
        },
        "effect": {
            kind: _effect(own.miou(kind), base.miou(kind) if base else None) for kind in KINDS
        },
        "minus_constant": _effect(own.miou("oracle"), measured[constant].miou("oracle"))
        if constant
        else None,
        "curve": [_rounded(x, 2) for x in own.curve().tolist()],
        "classes": {names[n]: round(iou, 2) for n, iou in own.class_ious("oracle").items()},
        "counts": _counts(own, base, images, weights),
        "area": _area(own, base, images, weights),
        "visible": _visible(own, base, images, weights),
        "frequency": _frequency(own, base, header, weights),
        "groups": _groups(own, base, images, weights),
    }


def _effect(own: Resampled, base: Resampled | None) -> list[float | None] | None:
    """A paired difference in points with its interval; None without a baseline."""
    if base is None:
        return None
    return [_rounded(own[0] - base[0]), *map(_rounded, interval(own[1] - base[1]))]


def _area(
    own: _Measured, base: _Measured | None, images: Sequence[ImageRow], weights: Tensor
) -> list[dict[str, Any]]:
    """IoU of (image, class) pairs in tenths of equal count by the class's share of the image."""
    areas = torch.tensor([x for image in images for x in (-1.0, *image.area)], dtype=torch.float64)
    foreground = own.label > 0
    tenth = torch.full_like(own.label, -1)
    tenth[foreground] = equal_parts(areas[foreground], TENTHS)
    tenths = []
    for number in range(TENTHS):
        chosen = tenth == number
        if not chosen.any():
            continue
        inside = areas[chosen]
        limits = {"from": round(float(inside.min()), 5), "to": round(float(inside.max()), 5)}
        values = _compared("iou", "oracle", _Measured.pairs, own, base, chosen, weights)
        tenths.append({**limits, "pairs": len(inside), **values})
    return tenths


def _visible(
    own: _Measured, base: _Measured | None, images: Sequence[ImageRow], weights: Tensor
) -> list[dict[str, Any]] | None:
    """IoU of (image, class) pairs by the share of the class that nothing covers."""
    if any(image.visible is None for image in images):
        return None
    shares = torch.tensor([x for image in images for x in (-1.0, *(image.visible or ()))])
    groups = []
    for low, high in pairwise(VISIBLE):
        chosen = (shares > low) & (shares <= high)
        if chosen.any():
            values = _compared("iou", "oracle", _Measured.pairs, own, base, chosen, weights)
            groups.append({"from": low, "to": high, "pairs": int(chosen.sum()), **values})
    return groups


def _counts(
    own: _Measured, base: _Measured | None, images: Sequence[ImageRow], weights: Tensor
) -> dict[str, Any]:
    """mIoU of the images with so many classes."""
    counts = torch.tensor([len(image.labels) for image in images])
    found = {}
    for count in sorted(set(counts.tolist())):
        chosen = (counts == count)[own.image]
        seen = {"images": int((counts == count).sum())}
        values = _compared("miou", "oracle", _Measured.classes, own, base, chosen, weights)
        found[str(count)] = seen | values
    return found


def _frequency(
    own: _Measured, base: _Measured | None, header: Mapping[str, Any], weights: Tensor
) -> dict[str, Any] | None:
    """Mean IoU of the classes that training showed rarely, sometimes and often."""
    counts, classes = header["counts"], header["classes"]
    if counts is None:
        return None
    missing = [name for name in classes if name not in counts]
    if missing:
        raise ValueError(f"counts have no {missing[0]!r}; allowed: a number for every class")
    group_of = tertiles({name: counts[name] for name in classes})
    found = {}
    for group in ("rare", "common", "frequent"):
        labels = [number for number, name in enumerate(classes, 1) if group_of[name] == group]
        chosen = torch.isin(own.label, torch.tensor(labels, dtype=torch.int64))
        seen = {"classes": len(set(own.label[chosen].tolist()))}
        found[group] = seen | _both("miou", _Measured.classes, own, base, chosen, weights)
    return found


def _groups(
    own: _Measured, base: _Measured | None, images: Sequence[ImageRow], weights: Tensor
) -> dict[str, Any] | None:
    """IoU of the class that a dial changes, at each of its levels; where it can be seen."""
    if all(image.target is None for image in images):
        return None
    targets = torch.tensor([-1 if i.target is None else i.target + 1 for i in images])
    numbers = {group: n for n, group in enumerate(dict.fromkeys(i.group for i in images))}
    level = torch.tensor([numbers[image.group] for image in images])
    is_target = own.label == targets[own.image]
    found = {}
    for group, number in numbers.items():
        chosen = is_target & (level[own.image] == number)
        pairs = {"pairs": int(chosen.sum())}
        found[group] = pairs | _both("iou", _Measured.pairs, own, base, chosen, weights)
    return found


def _both(
    name: str, how: How, own: _Measured, base: _Measured | None, chosen: Tensor, weights: Tensor
) -> dict[str, Any]:
    """A value at the oracle's threshold, and as "fixed" at the config's."""
    oracle, fixed = (_compared(name, kind, how, own, base, chosen, weights) for kind in KINDS)
    return oracle | {"fixed": fixed}


def _compared(
    name: str,
    kind: str,
    how: How,
    own: _Measured,
    base: _Measured | None,
    chosen: Tensor,
    weights: Tensor,
) -> dict[str, Any]:
    """A value of the rows where bool [R] is true: its interval, and its effect."""
    point, drawn = how(own, kind, chosen, weights)
    low, high = interval(drawn)
    against = how(base, kind, chosen, weights) if base else None
    return {
        name: _rounded(point),
        "low": _rounded(low),
        "high": _rounded(high),
        "effect": _effect((point, drawn), against),
    }


def _extremes(images: Sequence[ImageRow], row: _Measured | None) -> dict[str, Any]:
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


def _rounded(value: float, digits: int = 3) -> float | None:
    """None for what could not be measured."""
    return None if math.isnan(value) else round(value, digits)
