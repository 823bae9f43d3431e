"""A few test scenes, chosen by rule: masks before and after calibration, beside the truth."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixalign.alignment.result import Alignment
from pixalign.config import AlignConfig
from pixalign.core.files import check_folder, make_folder, write_json, write_text
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.pictures.saving import write_png
from pixalign.scenes.atlas import training_ranks, training_shares
from pixalign.scenes.demo_report import draw, page, summarise_demo, summary_picture
from pixalign.scenes.labelled import LabelledScene, labelled_scenes
from pixalign.scenes.sample import sample_scenes

SCENES = 8
SIZE = 128  # pixels on a side
FEWEST, MOST = 2, 4  # visible classes of a scene
START = 1000  # the search starts at test scene START times the seed
SMALL = (0.003, 0.025)  # bounds of the share of the picture
HIDDEN = (0.08, 0.5)  # bounds of the share that is visible
_BATCH = 64

Bools = NDArray[np.bool_]
Pair = tuple[Alignment, Alignment]  # before and after calibration


def _between(values: Sequence[float], bounds: tuple[float, float]) -> Bools:
    low, high = bounds
    return np.array([low < value < high for value in values])


def _rare(scene: LabelledScene) -> Bools:
    ranks = training_ranks()
    rare: Bools = ranks[list(scene.labels)] >= len(ranks) - len(ranks) // 10
    return rare


@dataclass(frozen=True)
class Rule:
    """A kind of scene: ``finds`` says bool [N] which classes make it one, ``text`` in words."""

    text: str
    finds: Callable[[LabelledScene], Bools]


RULES = {
    "rare": Rule("a class of the rarest tenth of the training classes", _rare),
    "small": Rule(
        f"a class that covers between {100 * SMALL[0]:g} and {100 * SMALL[1]:g} % of the picture",
        lambda scene: _between(scene.area, SMALL),
    ),
    "hidden": Rule(
        f"a class of which between {100 * HIDDEN[0]:g} and {100 * HIDDEN[1]:g} % is visible",
        lambda scene: _between(scene.visible, HIDDEN),
    ),
    "crowded": Rule(
        f"{MOST} different classes",
        lambda scene: np.full(len(scene.labels), len(scene.labels) == MOST),
    ),
}


def demo(
    model: AlignmentModel,
    out: str | os.PathLike[str],
    *,
    scenes: int = SCENES,
    seed: int = 0,
    config: AlignConfig | None = None,
    progress: bool = True,
    command: str | None = None,
) -> Path:
    """Write report.html, summary.png and demo.json into a folder; the path of report.html.

    The scenes are aligned by "attention" and by what ``config`` says (None: the model's default).
    ``seed`` is the noise's, and says where the search for scenes starts. ``command`` is what made
    the call, for the report.
    """
    if scenes < 1:
        raise ValueError(f"scenes is {scenes}; allowed: 1 or more")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; allowed: a whole number from 0 to 2**32 - 1")
    check_folder(out)
    chosen = choose(scenes, START * seed)
    pairs = _align(model, [scene for _, scene in chosen], config, seed, progress)
    rows = [describe(*choice, *pair) for choice, pair in zip(chosen, pairs, strict=True)]
    before, after = pairs[0]
    settings = f"scenes={scenes}, seed={seed}" + (", config=config" if config else "")
    record: dict[str, Any] = {
        "command": command or f"pixalign.scenes.demo.demo(model, {os.fspath(out)!r}, {settings})",
        "model": after.provenance["model"],
        "versions": versions(),
        "seed": seed,
        "start": START * seed,
        "gamma": after.config.gamma,
        "threshold": {"before": before.config.threshold, "after": after.config.threshold},
        "rules": {name: rule.text for name, rule in RULES.items()},
        "summary": summarise_demo(rows),
        "scenes": rows,
    }
    drawn = [draw(scene, *pair) for (_, scene), pair in zip(chosen, pairs, strict=True)]
    folder = make_folder(out)
    write_json(folder / "demo.json", record)
    write_png(folder / "summary.png", summary_picture(rows, drawn))
    return write_text(folder / "report.html", page(record, drawn))


def _align(
    model: AlignmentModel,
    scenes: Sequence[LabelledScene],
    config: AlignConfig | None,
    seed: int,
    progress: bool,
) -> list[Pair]:
    """Each scene without and with calibration, encoded once."""
    plain = dataclasses.replace(config or AlignConfig(), method="attention", calibrate="none")
    pairs = []
    with Progress(2 * len(scenes), "demo", progress, "alignment") as bar:
        for scene in scenes:
            encoded, pair = model.encode(scene.image), []
            for settings in (plain, config):
                pair.append(model.align(encoded, scene.names, config=settings, seed=seed))
                bar.advance(1)
            pairs.append((pair[0], pair[1]))
    return pairs


# ---- choosing ----


def choose(count: int, start: int = 0) -> list[tuple[str, LabelledScene]]:
    """(rule, scene) of ``count`` test scenes, evenly over the rules, in the rules' order.

    Each rule takes the first scenes from ``start`` on that it finds and no earlier rule took.
    """
    wanted = {name: len(range(place, count, len(RULES))) for place, name in enumerate(RULES)}
    taken: list[tuple[str, LabelledScene]] = []
    for scene in _test_scenes(start):
        for name, rule in RULES.items():
            if wanted[name] and rule.finds(scene).any():
                wanted[name] -= 1
                taken.append((name, scene))
                break
        if not any(wanted.values()):
            break
    return sorted(taken, key=lambda pair: list(RULES).index(pair[0]))


def _test_scenes(start: int) -> Iterator[LabelledScene]:
    """The scenes from ``start`` on that have 2 to 4 visible classes."""
    for first in itertools.count(start, _BATCH):
        for scene in labelled_scenes(sample_scenes("test", first, _BATCH), SIZE, "cpu", first):
            if FEWEST <= len(scene.labels) <= MOST:
                yield scene.in_class_order()


# ---- measuring ----


def iou(truth: np.ndarray, found: np.ndarray, labels: int) -> np.ndarray:
    """float64 [labels]: intersection over union of each label 0 .. labels - 1 of two masks [H, W].

    NaN where neither mask has the label.
    """
    pairs = truth.astype(np.int64) * labels + found
    table = np.bincount(pairs.ravel(), minlength=labels**2).reshape(labels, labels)
    hits = table.diagonal()
    union = table.sum(0) + table.sum(1) - hits
    shares: np.ndarray = np.where(union > 0, hits / np.maximum(union, 1), np.nan)
    return shares


def describe(
    rule: str, scene: LabelledScene, before: Alignment, after: Alignment
) -> dict[str, Any]:
    """What is known and was measured of a scene, as JSON-able values; IoU in [0, 1]."""
    labels, truth = len(scene.labels) + 1, scene.truth.numpy()
    ious = {
        "iou_before": iou(truth, before.mask(), labels),
        "iou_after": iou(truth, after.mask(), labels),
    }
    columns: dict[str, Sequence[float] | np.ndarray] = {
        "training_share": training_shares()[list(scene.labels)],
        "area_share": scene.area,
        "visible_share": scene.visible,
        "elbo": after.elbo,
        "score": after.scores,
        "exponent": after.exponents,
        **{name: values[1:] for name, values in ious.items()},
    }
    found = RULES[rule].finds(scene)
    return {
        "rule": rule,
        "scene": scene.number,
        "classes": [
            {"name": name, "by_rule": bool(found[index])}
            | {key: _number(column[index]) for key, column in columns.items()}
            for index, name in enumerate(scene.names)
        ],
        "background": {name: _number(values[0]) for name, values in ious.items()},
        **{f"mean_{name}": float(np.nanmean(values)) for name, values in ious.items()},
        "warnings": list(dict.fromkeys((*before.warnings, *after.warnings))),
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
