"""Can a model be believed? Verdicts, absent names, rankings and probabilities on test scenes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.probabilities import ReliabilityCounter
from pixalign.alignment.elbo import TextErrors, text_errors
from pixalign.alignment.plan import plan_prompts
from pixalign.alignment.present import Candidate, rank
from pixalign.alignment.request import EncodedImage
from pixalign.alignment.result import Alignment
from pixalign.alignment.trust import VERDICTS, Trust
from pixalign.bench.datasets import Dataset, open_dataset
from pixalign.bench.fitting import logits
from pixalign.bench.subject import Subject
from pixalign.config import FALLBACK, AlignConfig
from pixalign.core.progress import Progress
from pixalign.core.values import Phrase
from pixalign.methods import METHODS
from pixalign.model import Model, load

ABSENT = 5  # names that are not in a scene, added to those that are


def study_trust(
    name: str | None,
    scenes: int,
    ranked: int,
    device: str,
    *,
    save: Callable[[dict[str, Any]], object] = lambda record: None,
    show: bool = True,
) -> dict[str, Any]:
    """What "dense" says of ``scenes`` test scenes, with and without absent names.

    ``ranked`` of them are also asked for all classes of the lab, as `Model.present` asks. After
    each scene, what is known so far is handed to ``save``: scenes of 2, 3 and 4 objects alternate.
    """
    model = load(name, device=device, dtype="float32")
    dataset = open_dataset("lab", None, "test", scenes)
    study = TrustStudy(model, dataset.classes)
    with Progress(len(dataset), f"trust of {model.name}", show, "scene") as progress:
        for done, index in enumerate(alternating(dataset)):
            study.add(Subject(dataset[index], index, dataset.classes, 0), done < ranked)
            save(study.record())
            progress.advance(1)
    return study.record()


def alternating(dataset: Dataset) -> list[int]:
    """The scenes' numbers, those of 2, 3 and 4 objects in turn."""
    by_objects = [
        [index for index in range(len(dataset)) if len(dataset[index].present) == count]
        for count in (2, 3, 4)
    ]
    return [index for turn in zip_longest(*by_objects) for index in turn if index is not None]


class TrustStudy:
    """What is counted scene by scene."""

    def __init__(self, model: Model, classes: Sequence[str]) -> None:
        self.model, self.classes = model, classes
        self.pooled = {kind: Pooled() for kind in ("alone", "keep", "drop")}
        self.reliability = {key: ReliabilityCounter() for key in _reliability_keys()}
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.named: Counter[bool] = Counter()
        self.masks: dict[str, list[float]] = {}
        self.precisions: list[float] = []
        self.scenes = 0

    def add(self, subject: Subject, ranked: bool) -> None:
        """Measure a scene, with a ranking of all classes or without."""
        config = self.model.resolve(AlignConfig(method="dense"))
        every = [Phrase(name) for name in self.classes] if ranked else []
        absent = [Phrase(name) for name in _absent_names(subject, self.classes)]
        mixed, picture = [*subject.phrases, *absent], self.model.encode(subject.sample.image)
        errors = self._errors(subject, picture, [*mixed, *every], config)
        results = self._results(subject, picture, mixed, errors)
        for kind, result in results.items():
            self.pooled[kind].add(result, subject)
        for truth, shown, said in _truths(self.model, results["keep"], subject):
            self.verdicts[truth, said.verdict] += 1
            if said.other is not None:
                self.named[said.other == shown] += 1
        said_of_own = (results["keep"].trust or ())[: len(subject.phrases)]
        for iou, said in zip(ious(results["keep"], subject), said_of_own, strict=True):
            self.masks.setdefault(said.verdict, []).append(iou)
        _count(self.reliability, results["alone"], subject)
        if ranked:
            texts = plan_prompts(self.model.backbone, every, None, config).elbo_texts
            ranking = rank(every, errors.of(texts).evidence(config.absent_log_snr), config)
            self.precisions.append(_average_precision(ranking, subject))
        self.scenes += 1

    def record(self) -> dict[str, Any]:
        """What is known so far."""
        found = {key: counter.reliability() for key, counter in self.reliability.items()}
        means = {verdict: float(np.mean(values)) for verdict, values in self.masks.items()}
        return {
            "model": self.model.name,
            "scenes": self.scenes,
            "absent_names": ABSENT,
            "miou_of_present": {
                kind: round(100 * each.miou(), 2) for kind, each in self.pooled.items()
            },
            "verdicts": _rates(self.verdicts),
            "counts": {
                f"{truth}, said {said}": n for (truth, said), n in sorted(self.verdicts.items())
            },
            "others_named": {"right": self.named[True], "said": self.named.total()},
            "iou_by_verdict": {
                verdict: {"iou": round(100 * means[verdict], 1), "classes": len(values)}
                for verdict, values in sorted(self.masks.items())
            },
            "average_precision": (
                round(float(np.mean(self.precisions)), 4) if self.precisions else None
            ),
            "ranked_scenes": len(self.precisions),
            "reliability": {
                key: {"error": round(each.error, 4), **asdict(each)} for key, each in found.items()
            },
        }

    def _errors(
        self, subject: Subject, picture: EncodedImage, phrases: list[Phrase], config: AlignConfig
    ) -> TextErrors:
        backbone = self.model.backbone
        texts = [plan_prompts(backbone, [each], None, config).elbo_texts[0] for each in phrases]
        noised = subject.timesteps(backbone, picture.latents, config)[1]
        assert noised is not None
        how = (self.model.batch_size, Progress(0, "", False))
        (errors,) = text_errors(
            backbone, picture.latents, [texts], [noised], *how, by_position=True
        )
        return errors

    def _results(
        self, subject: Subject, picture: EncodedImage, mixed: list[Phrase], errors: TextErrors
    ) -> dict[str, Alignment]:
        """The scene's classes alone, and with absent names that are kept or dropped."""
        method = METHODS["dense"](self.model)
        options: dict[str, Any] = {"seed": subject.seed, "errors": errors}
        dropping = AlignConfig(method="dense", absent="drop")
        return {
            "alone": method.align(picture, subject.phrases, **options),
            "keep": method.align(picture, mixed, **options),
            "drop": method.align(picture, mixed, config=dropping, **options),
        }


def _absent_names(subject: Subject, classes: Sequence[str]) -> list[str]:
    others = [name for label, name in enumerate(classes) if label not in subject.labels]
    return random.Random(subject.seed).sample(others, ABSENT)


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


def ious(result: Alignment, subject: Subject) -> list[float]:
    """Of the scene's own classes, which come first in the result's mask."""
    mask, found = torch.from_numpy(result.mask().astype(np.int64)), []
    for number in range(1, len(subject.labels) + 1):
        claimed, true = mask == number, subject.truth == number
        found.append(float((claimed & true).sum() / (claimed | true).sum().clamp_min(1)))
    return found


def _truths(
    model: Model, result: Alignment, subject: Subject
) -> list[tuple[str, str | None, Trust]]:
    """What is true of each class's map before evidence acts, whose object it shows, the verdict.

    A map shows the object over which its mean is highest. A class that is in the scene is "sure"
    where that is its own, "confused" where it is another's, and "blind" where the background is.
    """
    assert result.trust is not None
    before = AlignConfig(method="attention", cross_weights="balanced", edges="none")
    plain = model.align(subject.sample.image, result.phrases, config=before, seed=subject.seed)
    areas = torch.stack([subject.truth == n for n in range(len(subject.labels) + 1)]).float()
    sums = torch.einsum("nhw,khw->nk", torch.from_numpy(plain.heatmaps), areas)
    places = (sums / areas.sum((1, 2)).clamp_min(1)).argmax(1).tolist()
    names = [None, *(phrase.name for phrase in subject.phrases)]
    found = []
    for number, (place, said) in enumerate(zip(places, result.trust, strict=True), 1):
        truth = "sure" if place == number else "confused" if place else "blind"
        absent = number > len(subject.labels)
        found.append(("absent" if absent else truth, names[place], said))
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


def _average_precision(ranking: Sequence[Candidate], subject: Subject) -> float:
    """Of the ranking of all classes, the scene's own being right."""
    own = {phrase.name for phrase in subject.phrases}
    places = [place for place, each in enumerate(ranking, 1) if each.name in own]
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
