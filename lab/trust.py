"""Can a model be believed? Verdicts, absent names, rankings and probabilities on test scenes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.probabilities import ReliabilityCounter
from pixalign.alignment.elbo import text_errors
from pixalign.alignment.plan import plan_prompts
from pixalign.alignment.result import Alignment
from pixalign.alignment.trust import VERDICTS
from pixalign.bench.datasets import open_dataset
from pixalign.bench.fitting import logits
from pixalign.bench.subject import Subject
from pixalign.config import FALLBACK, AlignConfig
from pixalign.core.progress import Progress
from pixalign.core.values import Phrase
from pixalign.methods import METHODS
from pixalign.model import Model, load

ABSENT = 5  # names that are not in a scene, added to those that are
LOST = 0.1  # of IoU: below it attention has lost a class


def study_trust(
    name: str | None, scenes: int, ranked: int, device: str, *, show: bool = True
) -> dict[str, Any]:
    """What "dense" says of ``scenes`` test scenes, with and without absent names.

    ``ranked`` of them are also asked for all classes of the lab (`Model.present`).
    """
    model = load(name, device=device, dtype="float32")
    dataset = open_dataset("lab", None, "test", scenes)
    pooled = {kind: Pooled() for kind in ("alone", "keep", "drop")}
    reliability = {key: ReliabilityCounter() for key in _reliability_keys()}
    verdicts: Counter[tuple[str, str]] = Counter()
    precisions = []
    with Progress(len(dataset), f"trust of {model.name}", show, "scene") as progress:
        for index in range(len(dataset)):
            subject = Subject(dataset[index], index, dataset.classes, 0)
            others = [Phrase(name) for name in _absent_names(subject, dataset.classes)]
            results = _results(model, subject, others)
            for kind, result in results.items():
                pooled[kind].add(result, subject)
            for truth, said in _truths(model, results["keep"], subject):
                verdicts[truth, said.verdict] += 1
            _count(reliability, results["alone"], subject)
            if index < ranked:
                precisions.append(_average_precision(model, subject, dataset.classes))
            progress.advance(1)
    return {
        "model": model.name,
        "scenes": len(dataset),
        "absent_names": ABSENT,
        "miou_of_present": {kind: round(100 * each.miou(), 2) for kind, each in pooled.items()},
        "verdicts": _rates(verdicts),
        "counts": {f"{truth}, said {said}": n for (truth, said), n in sorted(verdicts.items())},
        "average_precision": round(float(np.mean(precisions)), 4) if precisions else None,
        "ranked_scenes": len(precisions),
        "reliability": {
            key: {"error": round(counter.reliability().error, 4), **asdict(counter.reliability())}
            for key, counter in reliability.items()
        },
    }


def _absent_names(subject: Subject, classes: tuple[str, ...]) -> list[str]:
    others = [name for label, name in enumerate(classes) if label not in subject.labels]
    return random.Random(subject.seed).sample(others, ABSENT)


def _results(model: Model, subject: Subject, others: list[Phrase]) -> dict[str, Alignment]:
    """The scene's classes alone, and with absent names that are kept or dropped; errors once."""
    config = model.resolve(AlignConfig(method="dense"))
    picture, method = model.encode(subject.sample.image), METHODS["dense"](model)
    mixed = [*subject.phrases, *others]
    texts = plan_prompts(model.backbone, mixed, None, config).elbo_texts
    noised = subject.timesteps(model.backbone, picture.latents, config)[1]
    assert noised is not None
    how = (model.batch_size, Progress(0, "", False))
    (errors,) = text_errors(
        model.backbone, picture.latents, [texts], [noised], *how, by_position=True
    )
    options: dict[str, Any] = {"seed": subject.seed, "errors": errors}
    dropping = AlignConfig(method="dense", absent="drop")
    return {
        "alone": method.align(picture, subject.phrases, **options),
        "keep": method.align(picture, mixed, **options),
        "drop": method.align(picture, mixed, config=dropping, **options),
    }


class Pooled:
    """Pixels of the classes that are in the scenes: hits, claimed and true, by class."""

    def __init__(self) -> None:
        self.pixels: dict[int, Tensor] = {}

    def add(self, result: Alignment, subject: Subject) -> None:
        """A scene's mask; the scene's own classes come first."""
        mask = torch.from_numpy(result.mask().astype(np.int64))
        for number, label in enumerate(subject.labels, 1):
            claimed, true = mask == number, subject.truth == number
            counts = torch.stack([(claimed & true).sum(), claimed.sum(), true.sum()])
            self.pixels[label] = self.pixels.get(label, torch.zeros(3)) + counts

    def miou(self) -> float:
        """Over the classes, without the background."""
        ious = [hits / (claimed + true - hits) for hits, claimed, true in self.pixels.values()]
        return float(torch.stack(ious).mean())


def _truths(model: Model, result: Alignment, subject: Subject) -> list[tuple[str, Any]]:
    """What is true of each class under attention alone, and the verdict.

    Attention has lost a class below an IoU of `LOST`: it is confused where most of what it claims
    is of another class, and blind otherwise.
    """
    assert result.trust is not None
    plain = model.align(subject.sample.image, result.phrases, method="attention", seed=subject.seed)
    mask = torch.from_numpy(plain.mask().astype(np.int64))
    found = []
    for number, said in enumerate(result.trust, 1):
        claimed, true = mask == number, subject.truth == number
        if number > len(subject.labels):
            found.append(("absent", said))
            continue
        iou = float((claimed & true).sum() / (claimed | true).sum().clamp_min(1))
        most = int(subject.truth[claimed].bincount(minlength=1).argmax()) if claimed.any() else 0
        lost = "confused" if most not in (0, number) else "blind"
        found.append(("sure" if iou >= LOST else lost, said))
    return found


def _rates(verdicts: Counter[tuple[str, str]]) -> dict[str, dict[str, float | int | None]]:
    """Precision and recall of each verdict."""
    rates: dict[str, dict[str, float | int | None]] = {}
    for verdict in VERDICTS:
        right = verdicts[verdict, verdict]
        said = sum(n for (_, word), n in verdicts.items() if word == verdict)
        true = sum(n for (truth, _), n in verdicts.items() if truth == verdict)
        rates[verdict] = {
            "precision": round(right / said, 3) if said else None,
            "recall": round(right / true, 3) if true else None,
            "said": said,
            "true": true,
        }
    doubted, right = (
        sum(n for (truth, said), n in verdicts.items() if said != "sure" and truth != but)
        for but in ("", "sure")
    )
    lost = sum(n for (truth, _), n in verdicts.items() if truth != "sure")
    rates["any doubt"] = {
        "precision": round(right / doubted, 3) if doubted else None,
        "recall": round(right / lost, 3) if lost else None,
        "said": doubted,
        "true": lost,
    }
    return rates


def _average_precision(model: Model, subject: Subject, classes: tuple[str, ...]) -> float:
    """Of the ranking of all classes, the scene's own being right."""
    there = {phrase.name for phrase in subject.phrases}
    ranking = model.present(subject.sample.image, classes, seed=subject.seed)
    places = [place for place, each in enumerate(ranking, 1) if each.name in there]
    return float(np.mean([rank / place for rank, place in enumerate(places, 1)]))


def _reliability_keys() -> list[str]:
    return [f"{when}, {where}" for when in ("before", "after") for where in ("all", "objects")]


def _count(counters: dict[str, ReliabilityCounter], result: Alignment, subject: Subject) -> None:
    """The scene's probabilities at the usual temperature, and at the fitted one."""
    config = result.config
    assert config.threshold is not None
    assert config.temperature is not None
    values = logits(torch.from_numpy(result.heatmaps), config.threshold)
    for when, temperature in (("before", FALLBACK["temperature"]), ("after", config.temperature)):
        probabilities = (values / temperature).softmax(0)
        for where in ("all", "objects"):
            counter = counters[f"{when}, {where}"]
            counter.add(probabilities, subject.truth, objects_only=where == "objects")
