"""Drawn pictures with masks, judged: which objects get a right mask, and does trust tell which?

The judge is the lab's dense classifier, which was trained on true masks of rendered scenes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lab.classifier import PRESENT, load_classifier, look_at, presence
from lab.generation import LAB_SETS, parsed
from pixalign.backbones.fingerprint import fingerprint
from pixalign.backbones.locations import located
from pixalign.bench.annotating import SIGNALS as EVERY_SIGNAL
from pixalign.bench.annotating import Annotation, annotation_of
from pixalign.bench.generation_study import result_name, spread
from pixalign.bench.metrics import bootstrap_weights, interval
from pixalign.core.changes import check_unchanged
from pixalign.core.files import make_folder, read_json, write_json
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.core.values import Phrase
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.run import GENERATION_METHODS, draw_requests
from pixalign.scenes.atlas import class_names

RIGHT = 0.5  # a mask is right from this IoU with the classifier's region on
TOGETHER = 16  # pictures that are drawn and annotated together, and kept together
SIGNALS = tuple(name for name in EVERY_SIGNAL if name != "score")
CONTROL = "share"  # of the picture: says nothing of trust, but large masks are easier to get right
KEPT = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)  # shares of the objects
CHOSEN_AT = 0.8  # the share that the chosen bounds are to keep


# ---- measuring ----


def study_synthetic(
    model: AlignmentModel,
    out: Path,
    *,
    sets: Sequence[str],
    prompts: int,
    steps: int = 50,
    show: bool = True,
) -> dict[str, Any]:
    """Draw and annotate prompts of the lab's sets, and write what is known of each object.

    ``out``/NAME-objects.json is written after every TOGETHER pictures; the same call goes on.
    ``out``/NAME.json then says what filters keep (`summarise_synthetic`), which is returned.
    """
    path = make_folder(out) / f"{result_name(model)}-objects.json"
    asked = {
        "model": model.name,
        "weights": fingerprint(model.backbone.pipe),
        "sets": list(sets),
        "prompts": prompts,
        "steps": steps,
        "guidance": model.backbone.guidance,
        "right": RIGHT,
    }
    texts = [prompt for name in sets for prompt in LAB_SETS[name]()[:prompts]]
    about = {"device": device_name(model.backbone.device), "versions": versions()}
    result: dict[str, Any] = {"asked": asked, **about, "pictures": 0, "objects": []}
    if path.is_file():
        result = read_json(path)
        check_unchanged(result["asked"], asked, path, "objects")
    classifier = load_classifier(Path(located("lab:classifier")), str(model.backbone.device))
    settings = GenerationSettings(steps, model.backbone.guidance)
    with Progress(len(texts) - result["pictures"], "synthetic", show, "picture") as progress:
        for first in range(result["pictures"], len(texts), TOGETHER):
            part = texts[first : first + TOGETHER]
            requests = [GenerationRequest(p.text, first + n) for n, p in enumerate(part)]
            made = draw_requests(model, requests, settings, GENERATION_METHODS["plain"])
            phrases = [_phrases(prompt.entities) for prompt in part]
            pictures, seeds = iter([m.image for m in made]), iter([m.seed for m in made])
            aligned = model.align(pictures, iter(phrases), method="dense", seed=seeds)
            annotations = [annotation_of(each) for each in aligned]
            likely = look_at(classifier, [m.image for m in made])[0]
            for number, annotation in enumerate(annotations):
                judged = judge(annotation, likely[number : number + 1])
                result["objects"] += [{"picture": first + number, **each} for each in judged]
            result["pictures"] = first + len(part)
            progress.advance(len(part))
            write_json(path, result)
    summary = summarise_synthetic(result)
    write_json(out / f"{result_name(model)}.json", summary)
    return summary


def _phrases(entities: Sequence[str]) -> list[Phrase]:
    return [Phrase(class_names()[parsed(words)[0]], words) for words in entities]


def judge(annotation: Annotation, logits: Tensor) -> list[dict[str, Any]]:
    """Of each object what the annotator says, whether it is there, and its mask's IoU.

    ``logits`` [1, 1 + classes, h, w] are the classifier's; its region of a class is where that is
    the most probable of all, after smooth enlargement.
    """
    there = presence(logits)[0]
    size = annotation.mask.shape
    likely = functional.interpolate(logits.float().softmax(1), size, mode="bilinear")
    shown = likely.argmax(1)[0].cpu().numpy()
    judged = []
    for number, said in enumerate(annotation.objects, 1):
        label = class_names().index(said.name)
        own, true = annotation.mask == number, shown == 1 + label
        either = int((own | true).sum())
        judged.append(
            {
                "class": said.name,
                "verdict": said.verdict,
                **{name: round(value, 5) for name, value in said.numbers.items()},
                "share": round(said.share, 5),
                "there": round(float(there[label]), 3),
                "iou": round(int((own & true).sum()) / either, 4) if either else 0.0,
            }
        )
    return judged


# ---- what a filter keeps ----


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects as columns: ``picture`` int64 [N], ``sure``, ``right`` and ``there`` bool [N], and
    ``signals`` float64 [N] by name. An object without a pixel is never annotated."""

    picture: np.ndarray
    annotated: np.ndarray
    sure: np.ndarray
    right: np.ndarray
    there: np.ndarray
    signals: Mapping[str, np.ndarray]

    def __getitem__(self, rows: np.ndarray) -> Objects:
        columns = {name: column[rows] for name, column in vars(self).items() if name != "signals"}
        return Objects(**columns, signals={k: x[rows] for k, x in self.signals.items()})

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, Any]], right: float = RIGHT) -> Objects:
        """From what `study_synthetic` wrote."""

        def column(name: str) -> np.ndarray:
            return np.array([row[name] for row in rows])

        signals = {name: column(name).astype(float) for name in (*SIGNALS, CONTROL)}
        return cls(
            picture=column("picture"),
            annotated=column("share") > 0,
            sure=column("verdict") == "sure",
            right=column("iou") >= right,
            there=column("there") >= PRESENT,
            signals=signals,
        )


@dataclass(frozen=True)
class Filter:
    """Which objects are kept: the sure ones, or any, whose signals all reach their bounds.

    Of ``signals`` the bounds are quantiles of the annotated objects on which it is ``fitted``, all
    of one order, such that a given share of these is kept.
    """

    signals: tuple[str, ...]
    sure_only: bool

    @property
    def name(self) -> str:
        """ "sure, standing and lead"."""
        return (
            ", ".join(filter(None, ["sure" * self.sure_only, " and ".join(self.signals)])) or "all"
        )

    def ranks(self, known: Objects, fitted: Objects) -> np.ndarray:
        """float64 [N]: of its signals the lowest rank among the fitted, in [0, 1]; -1: never."""
        lowest = np.ones(len(known.picture))
        for name in self.signals:
            values = np.sort(fitted.signals[name][fitted.annotated])
            places = np.searchsorted(values, known.signals[name], side="right") / len(values)
            lowest = np.minimum(lowest, places)
        never = ~known.annotated | (self.sure_only & ~known.sure)
        return np.where(never, -1.0, lowest)

    def bounds(self, level: float, fitted: Objects) -> dict[str, float]:
        """The least value of each signal at a level of `ranks`."""
        found = {}
        for name in self.signals:
            values = np.sort(fitted.signals[name][fitted.annotated])
            place = min(max(int(np.ceil(level * len(values))) - 1, 0), len(values) - 1)
            found[name] = float(values[place])
        return found


def level_for(ranks: np.ndarray, share: float) -> float:
    """The highest level that at least such a share of all reaches, or 0."""
    order = np.sort(ranks)[::-1]
    place = max(int(np.ceil(share * len(ranks))), 1) - 1
    return max(float(order[place]), 0.0)


def candidates() -> list[Filter]:
    """Every signal and every pair of signals, of the sure objects and of any."""
    chosen = [(), *combinations(SIGNALS, 1), *combinations(SIGNALS, 2)]
    return [Filter(signals, sure) for signals in chosen for sure in (False, True)]


def figures(known: Objects, kept: np.ndarray, weights: Tensor) -> dict[str, Tensor]:
    """The kept share of the objects, the precision of their masks, and the recall of what is there.

    ``weights`` [B, pictures] resample the pictures, in the order of their numbers.
    """
    _, place = np.unique(known.picture, return_inverse=True)
    parts = {
        "kept": (kept, np.ones_like(kept)),
        "precision": (kept & known.right, kept),
        "recall": (kept & known.right & known.there, known.there),
    }
    drawn = {}
    for name, pair in parts.items():
        sums = [np.bincount(place, part, minlength=weights.shape[1]) for part in pair]
        part, whole = (weights @ torch.from_numpy(each.astype(float)) for each in sums)
        drawn[name] = 100 * part / whole  # NaN where nothing is kept
    return drawn


def summarise_synthetic(result: Mapping[str, Any], draws: int = 1000) -> dict[str, Any]:
    """Filters searched on the even pictures, and judged on the odd ones.

    A filter is as good as its mean precision over the kept shares KEPT on the even pictures. On the
    odd ones the best, the verdict alone and each single signal are shown at bounds that were set on
    the even ones; ``over_control`` is the gain over keeping as many by the size of their masks.
    Values are percent, with 95 % intervals over pictures.
    """
    every = Objects.read(result["objects"], result["asked"]["right"])
    fitted, judged = every[every.picture % 2 == 0], every[every.picture % 2 == 1]
    found = {}
    for each in candidates():
        if each.signals:
            found[each] = _mean_precision(fitted, each.ranks(fitted, fitted))
    order = sorted(found, key=lambda each: (-found[each], len(each.signals), each.name))
    best = order[0]
    count = len(np.unique(judged.picture))
    once = torch.ones(1, count, dtype=torch.float64)
    weights = torch.cat([once, bootstrap_weights(count, draws)])
    plain = figures(judged, judged.annotated, weights)

    def kept(each: Filter, share: float) -> tuple[float, np.ndarray, float]:
        """The level, what it keeps of the judged, and its share of the fitted."""
        ranks = each.ranks(fitted, fitted)
        level = level_for(ranks, share)
        return level, each.ranks(judged, fitted) >= level, float((ranks >= level).mean())

    def row(each: Filter, share: float) -> dict[str, Any]:
        level, chosen, reached = kept(each, share)
        drawn = figures(judged, chosen, weights)
        control = figures(judged, kept(Filter((CONTROL,), False), reached)[1], weights)
        drawn["gain"] = drawn["precision"] - plain["precision"]
        drawn["over_control"] = drawn["precision"] - control["precision"]
        return {
            "asked": share,
            "bounds": {name: round(x, 5) for name, x in each.bounds(level, fitted).items()},
            **{name: _entry(values) for name, values in drawn.items()},
        }

    singles = [Filter((name,), False) for name in (*SIGNALS, CONTROL)]
    return {
        **{name: result[name] for name in ("asked", "device", "versions") if name in result},
        "pictures": result["pictures"],
        "objects": len(every.picture),
        "judged": len(judged.picture),
        "there": round(100 * float(every.there.mean()), 2),
        "unfiltered": {name: _entry(values) for name, values in plain.items()},
        "verdict": row(Filter((), True), 1.0),
        "search": [{"filter": each.name, "precision": round(found[each], 2)} for each in order],
        "best": {**asdict(best), "name": best.name, "at": row(best, CHOSEN_AT)},
        "curves": {
            each.name: [row(each, share) for share in KEPT]
            for each in dict.fromkeys([best, *singles])
        },
        "by_verdict": {
            verdict: _entry(_precision_of(judged, verdict, result, weights))
            for verdict in ("sure", "confused", "blind", "absent")
        },
    }


def _mean_precision(known: Objects, ranks: np.ndarray) -> float:
    """Percent, over the shares KEPT."""
    once = torch.ones(1, len(np.unique(known.picture)), dtype=torch.float64)
    kept = [ranks >= level_for(ranks, share) for share in KEPT]
    return float(np.mean([float(figures(known, each, once)["precision"][0]) for each in kept]))


def _precision_of(
    judged: Objects, verdict: str, result: Mapping[str, Any], weights: Tensor
) -> Tensor:
    """The precision of the odd pictures' objects of one verdict."""
    said = np.array([row["verdict"] for row in result["objects"] if row["picture"] % 2])
    return figures(judged, judged.annotated & (said == verdict), weights)["precision"]


def _entry(drawn: Tensor) -> dict[str, float | None]:
    """The first of the values, and the interval of the others; None where nothing is kept."""
    ends = interval(drawn[1:]) if bool(drawn[1:].isfinite().any()) else (math.nan, math.nan)
    values = zip(("value", "low", "high"), (float(drawn[0]), *ends), strict=True)
    return {name: None if math.isnan(x) else round(x, 2) for name, x in values}


def format_synthetic(summary: Mapping[str, Any]) -> str:
    """The filters' figures on the odd pictures, a line each."""

    def said(entry: Mapping[str, Any], form: str = ".1f") -> str:
        return "nothing" if entry["value"] is None else spread(entry, form)

    def line(name: str, row: Mapping[str, Any]) -> str:
        gain = said(row["gain"], "+.1f") if "gain" in row else ""
        columns = (said(row["kept"]), said(row["precision"]), gain, said(row["recall"]))
        return f"{name:<{width}}" + "".join(f"{column:<24}" for column in columns)

    width = 14 + max(map(len, summary["curves"]))
    shown = f"{summary['pictures']} pictures, {summary['objects']} objects"
    lines = [f"{shown}; {summary['there']:.1f} % of these are there, says the classifier"]
    titles = ("kept, %", "precision, %", "minus all", "recall, %")
    lines.append(f"{'on the odd pictures':<{width}}" + "".join(f"{each:<24}" for each in titles))
    lines += [line("all", summary["unfiltered"]), line("sure", summary["verdict"])]
    for name, rows in summary["curves"].items():
        lines += [line(f"{name}, {row['asked']:.0%} asked", row) for row in rows[1:]]
    best = summary["best"]
    bounds = ", ".join(f"{k} >= {v:g}" for k, v in best["at"]["bounds"].items())
    lines.append(f"best on the even pictures: {best['name']} ({bounds} at {CHOSEN_AT:.0%})")
    return "\n".join(lines)
