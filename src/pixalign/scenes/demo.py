"""A few test scenes, chosen by rule: masks before and after calibration, beside the truth."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pixalign.alignment.result import Alignment
from pixalign.config import AlignConfig
from pixalign.core.files import check_folder, make_folder, write_bytes, write_json
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel as Aligner
from pixalign.core.provenance import versions
from pixalign.pictures.saving import write_png
from pixalign.scenes.atlas import class_names, training_shares
from pixalign.scenes.demo_report import draw, page, summarise, summary_picture
from pixalign.scenes.labelled import LabelledScene, labelled_scenes
from pixalign.scenes.sample import sample_scenes

SCENES = 8
SIZE = 128  # pixels on a side
FEWEST, MOST = 2, 4  # visible classes of a scene
START = 1000  # the search starts at test scene START times the seed
SMALL = (0.003, 0.025)  # bounds of the share of the picture
HIDDEN = (0.08, 0.5)  # bounds of the share that is visible
_BATCH = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scene:
    """A test scene with N visible classes, in the order of the class list.

    ``picture`` uint8 [128, 128, 3]; ``truth`` uint8 [128, 128]: 0 background, i for
    ``classes[i - 1]``. ``training`` [N] are the classes' shares of the training objects, ``areas``
    [N] of the picture; ``visible`` [N] are the shares of them that nothing covers.
    """

    number: int
    picture: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    classes: tuple[str, ...]
    training: Floats
    areas: Floats
    visible: Floats


@dataclass(frozen=True)
class Rule:
    """A kind of scene: ``finds`` says bool [N] which classes make it one, ``text`` in words."""

    text: str
    finds: Callable[[Scene], NDArray[np.bool_]]


def _rare(scene: Scene) -> NDArray[np.bool_]:
    shares = np.sort(training_shares())
    found: NDArray[np.bool_] = scene.training <= shares[len(shares) // 10 - 1]
    return found


RULES = {
    "rare": Rule("a class of the rarest tenth of the training classes", _rare),
    "small": Rule(
        f"a class that covers between {100 * SMALL[0]:g} and {100 * SMALL[1]:g} % of the picture",
        lambda scene: (scene.areas > SMALL[0]) & (scene.areas < SMALL[1]),
    ),
    "hidden": Rule(
        f"a class of which between {100 * HIDDEN[0]:g} and {100 * HIDDEN[1]:g} % is visible",
        lambda scene: (scene.visible > HIDDEN[0]) & (scene.visible < HIDDEN[1]),
    ),
    "crowded": Rule(
        f"{MOST} different classes",
        lambda scene: np.full(len(scene.classes), len(scene.classes) == MOST),
    ),
}

Pair = tuple[Alignment, Alignment]  # before and after calibration


def demo(
    out: Path,
    *,
    model: Any = None,
    device: str = "auto",
    scenes: int = SCENES,
    seed: int = 0,
    progress: bool = True,
    config: AlignConfig | None = None,
) -> Path:
    """Write report.html, summary.png and demo.json into a folder; the path of report.html.

    ``model`` None is the embedded one. ``seed`` is the noise's, and says where the search for
    scenes starts. ``config`` None compares the uncalibrated preset with the default settings.
    """
    if scenes < 1:
        raise ValueError(f"scenes is {scenes}; allowed: 1 or more")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; allowed: a whole number from 0 to 2**32 - 1")
    check_folder(out)
    aligner = Aligner.from_pretrained(model, device=device, config=config)
    chosen = choose(scenes, START * seed)
    pairs = _align(aligner, [scene for _, scene in chosen], config, seed, progress)
    rows = [describe(*choice, *pair) for choice, pair in zip(chosen, pairs, strict=True)]
    before, after = pairs[0]
    record: dict[str, Any] = {
        "command": _command(out, model, device, scenes, seed, config),
        "model": after.provenance["model"],
        "versions": versions(),
        "seed": seed,
        "start": START * seed,
        "gamma": after.config.gamma,
        "threshold": {"before": before.config.threshold, "after": after.config.threshold},
        "rules": {name: rule.text for name, rule in RULES.items()},
        "summary": summarise(rows),
        "scenes": rows,
    }
    drawn = [draw(scene.truth, *pair) for (_, scene), pair in zip(chosen, pairs, strict=True)]
    folder = make_folder(out)
    write_json(folder / "demo.json", record)
    write_png(folder / "summary.png", summary_picture(rows, drawn))
    return write_bytes(folder / "report.html", page(record, drawn).encode())


def _align(
    aligner: Aligner,
    scenes: Sequence[Scene],
    config: AlignConfig | None,
    seed: int,
    progress: bool,
) -> list[Pair]:
    """Each scene without and with calibration, encoded once."""
    plain = AlignConfig.uncalibrated()
    if config is not None:
        plain = dataclasses.replace(config, calibrate=False)
    pairs = []
    with Progress(2 * len(scenes), "demo", progress, "alignment") as bar:
        for scene in scenes:
            encoded = aligner.encode(Image.fromarray(scene.picture))
            before = aligner.align(encoded, scene.classes, config=plain, seed=seed)
            bar.advance(1)
            after = aligner.align(encoded, scene.classes, seed=seed)
            bar.advance(1)
            pairs.append((before, after))
    return pairs


def _command(
    out: Path, model: Any, device: str, scenes: int, seed: int, config: AlignConfig | None
) -> str:
    """What makes the same again: the command, or a call where the command has no option."""
    named = model is None or isinstance(model, str | os.PathLike)
    if not named or scenes != SCENES or config is not None:
        shown = repr(os.fspath(model) if model is not None else None) if named else "pipe"
        settings = f"scenes={scenes}, seed={seed}" + (", config=config" if config else "")
        return f"pixalign.scenes.demo.demo(Path({os.fspath(out)!r}), model={shown}, {settings})"
    words = ["pixalign", "demo", "--out", os.fspath(out), "--seed", str(seed)]
    words += ["--model", os.fspath(model)] if model is not None else []
    words += ["--device", device] if device != "auto" else []
    return shlex.join(words)


# ---- choosing ----


def choose(count: int, start: int = 0) -> list[tuple[str, Scene]]:
    """(rule, scene) of ``count`` test scenes, evenly over the rules, in the rules' order.

    Each rule takes the first scenes from ``start`` on that it finds and no earlier rule took.
    """
    wanted = {name: len(range(place, count, len(RULES))) for place, name in enumerate(RULES)}
    taken: list[tuple[str, Scene]] = []
    for scene in _test_scenes(start):
        for name, rule in RULES.items():
            if wanted[name] and rule.finds(scene).any():
                wanted[name] -= 1
                taken.append((name, scene))
                break
        if not any(wanted.values()):
            break
    return sorted(taken, key=lambda pair: list(RULES).index(pair[0]))


def _test_scenes(start: int) -> Iterator[Scene]:
    """The scenes from ``start`` on that have 2 to 4 visible classes."""
    for first in itertools.count(start, _BATCH):
        for subject in labelled_scenes(sample_scenes("test", first, _BATCH), SIZE, "cpu", first):
            if FEWEST <= len(subject.labels) <= MOST:
                yield _scene(subject)


def _scene(subject: LabelledScene) -> Scene:
    """A subject with its classes in the order of the class list."""
    order = np.argsort(subject.labels)
    place = np.concatenate([[0], 1 + np.argsort(order)])  # where each label of the truth goes
    labels = np.array(subject.labels)[order]
    return Scene(
        number=subject.number,
        picture=np.round(subject.picture.permute(1, 2, 0).numpy() * 255).astype(np.uint8),
        truth=place[subject.truth.numpy()].astype(np.uint8),
        classes=tuple(class_names()[label] for label in labels),
        training=training_shares()[labels],
        areas=np.array(subject.area)[order],
        visible=np.array(subject.visible)[order],
    )


# ---- measuring ----


def iou(truth: np.ndarray, found: np.ndarray, labels: int) -> Floats:
    """float64 [labels]: intersection over union of each label 0 .. labels - 1 of two masks [H, W].

    NaN where neither mask has the label.
    """
    pairs = truth.astype(np.int64) * labels + found
    table = np.bincount(pairs.ravel(), minlength=labels**2).reshape(labels, labels)
    hits = table.diagonal()
    union = table.sum(0) + table.sum(1) - hits
    return np.where(union > 0, hits / np.maximum(union, 1), np.nan)


def describe(rule: str, scene: Scene, before: Alignment, after: Alignment) -> dict[str, Any]:
    """What is known and was measured of a scene, as JSON-able values; IoU in [0, 1]."""
    labels = len(scene.classes) + 1
    ious = {
        "iou_before": iou(scene.truth, before.mask(), labels),
        "iou_after": iou(scene.truth, after.mask(), labels),
    }
    columns: dict[str, np.ndarray] = {
        "training_share": scene.training,
        "area_share": scene.areas,
        "visible_share": scene.visible,
        "elbo": after.elbo,
        "score": after.scores,
        "exponent": after.exponents,
        **{name: values[1:] for name, values in ious.items()},
    }
    found = RULES[rule].finds(scene)
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(scene.classes):
        values = {key: _number(column[index]) for key, column in columns.items()}
        rows.append({"name": name, "by_rule": bool(found[index]), **values})
    return {
        "rule": rule,
        "scene": scene.number,
        "classes": rows,
        "background": {name: _number(values[0]) for name, values in ious.items()},
        **{f"mean_{name}": float(np.nanmean(values)) for name, values in ious.items()},
        "warnings": list(dict.fromkeys((*before.warnings, *after.warnings))),
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
