"""Can an audit be believed? What it says beside what is true of the lab's models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lab.classifier import PRESENT, SceneClassifier, colour_of, load_classifier, look_at, presence
from lab.generation import LAB_SETS, parsed
from pixalign.audit import MaskedPictures, Prompts, audit
from pixalign.audit.drawing import faults
from pixalign.audit.figures import SCORES
from pixalign.audit.records import Record
from pixalign.audit.store import read_records
from pixalign.backbones.locations import SETTINGS_FILE, located
from pixalign.bench.datasets import open_dataset
from pixalign.bench.metrics import bootstrap_weights, interval
from pixalign.bench.pairs import spearman
from pixalign.config import AlignConfig
from pixalign.model import Model, load

MODELS = ("lab:sd1", "lab:sd2", "lab:sdxl", "lab:sd3")
TRUE = ("iou_dense", "iou_attention")
CHOSEN_ON = ("lab:sd1", 48)  # on whose first coloured prompts LEAKED was chosen
FINAL = "lab:flux"  # beside an early checkpoint of its recipe
CONFIG = AlignConfig.fast()
DRAWS = 1000
LEAST = 2  # pictures of a class that is ranked
# Of a picture's things: what the audit says, what is true, and the number that it judged by.
JudgedRow = tuple[list[bool], list[bool], list[float]]


def study_ranking(
    name: str, scenes: Mapping[str, int], out: Path, **options: Any
) -> dict[str, Any]:
    """By split, Spearman's correlation over classes of each score with the true IoU.

    ``scenes`` are how many of each split; intervals resample classes.
    """
    found: dict[str, Any] = {}
    for split, count in scenes.items():
        source = MaskedPictures(open_dataset("lab", None, split, count))
        document = audit(
            {name: _loader(name)}, source, out / f"ranking-{split}", config=CONFIG, **options
        )
        (subject,) = document["subjects"]
        rows = [row for row in subject["classes"] if row["pictures"] >= LEAST]
        found[split] = {
            "scenes": count,
            "classes": len(rows),
            "miou": subject["overall"]["miou_dense"],
        }
        for true in TRUE:
            found[split][true] = {score: rank_correlation(rows, score, true) for score in SCORES}
    return found


def rank_correlation(rows: Sequence[Mapping[str, Any]], score: str, true: str) -> list[float]:
    """[value, low, high] of Spearman's over classes of an audit's rows."""
    said = np.array([_score(row, score) for row in rows])
    known = np.array([row[true]["value"] for row in rows])
    picks = np.random.default_rng(0).integers(len(rows), size=(DRAWS, len(rows)))
    drawn = torch.tensor([spearman(said[pick], known[pick]) for pick in picks])
    return [round(x, 3) for x in (spearman(said, known), *interval(drawn))]


def _score(row: Mapping[str, Any], name: str) -> float:
    if name == "sure":
        return float(row["verdicts"]["sure"] / row["pictures"])
    return float(row[name]["value"])


# ---- prompts ----


def study_prompts(
    name: str, counts: Mapping[str, int], steps: int, out: Path, **options: Any
) -> dict[str, Any]:
    """Entities that the audit calls neglected, beside those that the scene classifier misses.

    And attributes that it calls leaked, beside objects that are seen in the other's colour.
    ``counts`` are how many prompts of each set are drawn.
    """
    classifier = load_classifier(Path(located("lab:classifier")), "cpu")
    found: dict[str, Any] = {}
    for set_name, count in counts.items():
        if not count:
            continue
        chosen = LAB_SETS[set_name]()[:count]
        source, folder = Prompts(chosen, steps=steps), out / set_name
        document = audit({name: _loader(name)}, source, folder, config=CONFIG, **options)
        records = read_records(folder, name)
        rows = neglected_rows(records, folder, classifier)
        found[set_name] = {
            "pictures": len(records),
            "steps": steps,
            "overall": document["subjects"][0]["overall"],
            "neglected": against([(said, true) for said, true, _ in rows]),
            "auc": _auc([(standing, [not x for x in true]) for _, true, standing in rows]),
        }
        if "attributes" in set_name:
            found[set_name]["leaked"] = leaks_of(name, leaked_rows(records, folder, classifier))
    return found


def neglected_rows(
    records: Sequence[Record], folder: Path, classifier: SceneClassifier
) -> list[JudgedRow]:
    """Of each picture's entities: called neglected, not found by the classifier, standing."""
    rows = []
    for record in records:
        with Image.open(folder / record["file"]) as picture:
            classes, _ = look_at(classifier, [picture.convert("RGB")])
        likely = presence(classes)[0]
        asked = [parsed(row["phrase"])[0] for row in record["classes"]]
        missing = [float(likely[label]) < PRESENT for label in asked]
        said = list(faults(record).neglected)
        rows.append((said, missing, [row["standing"] for row in record["classes"]]))
    return rows


def leaks_of(name: str, rows: Sequence[JudgedRow]) -> dict[str, Any]:
    """Of a model's pictures, those apart on which the bound was chosen."""
    parts = {"chosen": rows[:CHOSEN_ON[1]], "others": rows[CHOSEN_ON[1]:]}  # fmt: skip
    if name != CHOSEN_ON[0]:
        parts = {"others": rows}
    return {
        part: {
            **against([(said, true) for said, true, _ in own]),
            "auc": _auc([(added, true) for _, true, added in own]),
        }
        for part, own in parts.items()
        if own
    }


def leaked_rows(
    records: Sequence[Record], folder: Path, classifier: SceneClassifier
) -> list[JudgedRow]:
    """Of each picture's colours that were judged: called leaked, seen on the other object, and by
    how much the word suits that one.

    Only where the classifier finds the other object.
    """
    rows = []
    for record in records:
        with Image.open(folder / record["file"]) as picture:
            classes, colours = look_at(classifier, [picture.convert("RGB")])
        asked = [parsed(row["phrase"]) for row in record["classes"]]
        likely = presence(classes)[0]
        said, true, shares = [], [], []
        for place, rival, added, leaked in faults(record).attributes:
            each = record["attributes"][place]
            (label, colour), (other, _) = asked[each["of"]], asked[rival]
            shade = record["classes"][each["of"]]["phrase"].split()[0]
            seen = min(float(likely[label]), float(likely[other])) >= PRESENT
            if each["word"] != shade or colour is None or not seen:
                continue
            said.append(leaked)
            true.append(int(colour_of(classes, colours, torch.tensor([other]))) == colour)
            shares.append(added)
        rows.append((said, true, shares))
    return rows


def against(rows: Sequence[tuple[Sequence[bool], Sequence[bool]]]) -> dict[str, Any]:
    """Precision, recall and agreement in percent, [value, low, high]; intervals over pictures."""
    counts = torch.tensor(
        [
            [
                sum(a and b for a, b in zip(said, true, strict=True)),
                sum(said),
                sum(true),
                sum(a == b for a, b in zip(said, true, strict=True)),
                len(said),
            ]
            for said, true in rows
        ],
        dtype=torch.float64,
    )
    total = counts.sum(0, keepdim=True)
    drawn = bootstrap_weights(len(rows), DRAWS) @ counts
    made: dict[str, Any] = {
        "said": int(total[0, 1]),
        "true": int(total[0, 2]),
        "of": int(total[0, 4]),
    }
    for name, (part, whole) in {"precision": (0, 1), "recall": (0, 2), "agreement": (3, 4)}.items():
        value = 100 * total[0, part] / total[0, whole]
        low, high = interval(100 * drawn[:, part] / drawn[:, whole])
        made[name] = [None if x != x else round(float(x), 1) for x in (value, low, high)]
    return made


def _auc(rows: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> list[float | None]:
    """[value, low, high]: how often what is true has a higher number than what is not."""
    drawn = np.random.default_rng(0).integers(len(rows), size=(DRAWS, len(rows)))
    values = [area([rows[index] for index in pick]) for pick in drawn]
    low, high = interval(torch.tensor(values))
    return [None if x != x else round(x, 3) for x in (area(rows), low, high)]


def area(rows: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> float:
    """The area under the ROC curve of numbers, for what is true; NaN of one kind alone."""
    values = np.array([x for numbers, _ in rows for x in numbers])
    true = np.array([x for _, known in rows for x in known], dtype=bool)
    if true.all() or not true.any():
        return float("nan")
    more = values[true][:, None] - values[~true][None]
    return float((more > 0).mean() + (more == 0).mean() / 2)


# ---- an early checkpoint ----


def study_checkpoint(early: Path, scenes: int, out: Path, **options: Any) -> dict[str, Any]:
    """An early checkpoint (the folder of a pipeline) beside `FINAL`, both under its settings."""
    settings = Path(located(FINAL)) / SETTINGS_FILE
    subjects: dict[str, Callable[[], Model]] = {
        "early": lambda: load(early, device="cpu", settings=settings),
        "final": lambda: load(FINAL, device="cpu", settings=settings),
    }
    source = MaskedPictures(open_dataset("lab", None, "test", scenes))
    document = audit(subjects, source, out / "checkpoint", config=CONFIG, **options)
    (pair,) = document["comparisons"]
    return {
        "scenes": scenes,
        **{subject["name"]: subject["overall"] for subject in document["subjects"]},
        "difference": pair["overall"],
        "gained": pair["gained"],
        "lost": pair["lost"],
    }


def _loader(name: str) -> Callable[[], Model]:
    return lambda: load(name, device="cpu", dtype="float32")


def study_audit(
    name: str,
    val: int,
    test: int,
    prompts: Mapping[str, int],
    steps: int,
    work: Path | None,
    show: bool = True,
) -> dict[str, Any]:
    """All that is asked of one model; ``work`` keeps the audits, so that the same call goes on."""
    with tempfile.TemporaryDirectory() as passing:
        out = (work or Path(passing)) / name.replace(":", "-")
        record: dict[str, Any] = {"model": name, "preset": "fast"}
        if val and test:
            record["ranking"] = study_ranking(name, {"val": val, "test": test}, out, show=show)
        if any(prompts.values()):
            record["prompts"] = study_prompts(name, prompts, steps, out, show=show)
    return record
