"""The result of an alignment: what a user looks at, thresholds and saves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pixalign.alignment.calibrate import exponents
from pixalign.alignment.evidence import log_ratio
from pixalign.alignment.heatmaps import finish
from pixalign.alignment.objects import as_coco, as_supervision
from pixalign.alignment.saved import load_alignment, save_alignment
from pixalign.alignment.task import AlignmentTask
from pixalign.alignment.trust import Trust, absent, doubts, trust
from pixalign.config import AlignConfig
from pixalign.core.files import slug
from pixalign.core.provenance import versions
from pixalign.core.values import Phrase, Scores, Size
from pixalign.pictures import drawing as viz
from pixalign.pictures.saving import encoded
from pixalign.text.prompts import Prompt

Floats = NDArray[np.float32]
_NAMED = 8  # classes in a representation


@dataclass(frozen=True)
class MethodOutput:
    """Heatmaps float32 [N, H, W] on the CPU, and the uncalibrated cross maps [N, h, w].

    ``layers`` says for the record which layers were read and how they count. ``grid`` is the one
    that the heatmaps were enlarged from, where it is not that of the cross maps.
    """

    heatmaps: Tensor
    cross: Tensor
    layers: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    grid: Size | None = None

    @property
    def cells(self) -> Size:
        """The (height, width) of the grid that the heatmaps were enlarged from."""
        return self.grid or (self.cross.shape[-2], self.cross.shape[-1])


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """How strongly each pixel of an image belongs to each class. Arrays are NumPy's.

    ``losses`` float32 [N, T] and ``elbo`` float32 [N] (NaN if nothing was calibrated), ``scores``
    float32 [N] in [gamma, 1], ``heatmaps`` float32 [N, H, W] in [0, 1] at the size of the input
    image. If evidence was measured, ``evidence`` float32 [N, h, w] on the latent grid is 0 where a
    class explains the picture best and below 0 elsewhere, and ``trust`` holds a verdict for each
    class; otherwise both are None. All follow the order of the given classes.
    """

    image: Image.Image
    phrases: tuple[Phrase, ...]
    losses: Floats
    elbo: Floats
    scores: Floats
    heatmaps: Floats
    config: AlignConfig
    evidence: Floats | None = None
    trust: tuple[Trust, ...] | None = None
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name} {share:.0%}"
            for name, share in zip(self.classes[:_NAMED], self.shares()[1:], strict=False)
        )
        more = f" and {len(self.classes) - _NAMED} more" if len(self.classes) > _NAMED else ""
        size = f"{self.image.width}x{self.image.height}"
        return f"<pixalign.Alignment {self.config.method} of {size} pixels: {shown}{more}>"

    def __getitem__(self, name: str) -> Floats:
        """The heatmap float32 [H, W] of a class."""
        if name not in self.classes:
            known = ", ".join(self.classes)
            raise KeyError(f"{name!r} is none of the classes: {known}")
        heatmap: Floats = self.heatmaps[self.classes.index(name)]
        return heatmap

    def _repr_png_(self) -> bytes:
        """The overlay, for notebooks."""
        return encoded(self.overlay())

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(phrase.name for phrase in self.phrases)

    @cached_property
    def exponents(self) -> Floats:
        """float32 [N]: the power that each map was raised to, 1 / scores unless centred.

        It is 1 where the scores do not affect the maps.
        """
        if self.config.calibrate != "elbo":
            return np.ones_like(self.scores)
        powers = exponents(torch.as_tensor(self.scores), bool(self.config.centred))
        return powers.float().numpy()

    def mask(self, threshold: float | None = None) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Labels [H, W]: 0 where no heatmap reaches the threshold, else i for classes[i - 1].

        uint8, or uint16 with more than 255 classes.
        """
        highest = self.heatmaps[0]
        kind = np.uint8 if len(self.phrases) <= 255 else np.uint16
        labels = np.ones(highest.shape, dtype=kind)
        for label, heatmap in enumerate(self.heatmaps[1:], start=2):  # `argmax` takes twice as long
            np.copyto(labels, kind(label), where=heatmap > highest)
            highest = np.maximum(highest, heatmap)
        labels[highest < np.float32(self._threshold(threshold))] = 0
        return labels

    def probs(self, threshold: float | None = None) -> Floats:
        """Probabilities float32 [N + 1, H, W] that sum to 1; channel 0 is the background.

        softmax([threshold, heatmaps] / temperature): the threshold is the background's logit,
        so the most probable channel is the mask.
        """
        tau = np.float32(self._threshold(threshold))
        # The mask counts a heatmap that equals the threshold as foreground.
        tie = self.heatmaps.max(0) == tau
        temperature = self.config.resolved().temperature
        assert temperature is not None
        nudge = 1e-6 * temperature * tie
        logits = np.concatenate([(tau - nudge)[None], self.heatmaps], dtype=np.float64)
        logits -= logits.max(0)
        weights = np.exp(logits / temperature)
        probabilities: Floats = (weights / weights.sum(0)).astype(np.float32)
        return probabilities

    def confidence(self, threshold: float | None = None) -> Floats:
        """float32 [H, W]: at each pixel the highest of `probs`, which is that of its label."""
        config, tau = self.config.resolved(), np.float32(self._threshold(threshold))
        assert config.temperature is not None
        temperature = np.float32(config.temperature)
        highest = np.maximum(self.heatmaps.max(0), tau)
        total = np.exp((tau - highest) / temperature)
        for heatmap in self.heatmaps:
            total += np.exp((heatmap - highest) / temperature)
        most_probable: Floats = 1 / total
        return most_probable

    def shares(self, threshold: float | None = None) -> Floats:
        """float32 [N + 1]: the share of the mask's pixels for each label, background first."""
        mask = self.mask(threshold)
        counts = np.bincount(mask.ravel(), minlength=len(self.phrases) + 1)
        return (counts / mask.size).astype(np.float32)

    def overlay(self, threshold: float | None = None) -> Image.Image:
        """The image with its mask in colours, and a legend with scores and pixel shares."""
        shares = self.shares(threshold)
        legend = [
            f"{name}  {share:.0%}" + (f"  S={score:.2f}" if self.config.calibrate == "elbo" else "")
            if share or len(self.classes) <= _NAMED
            else None
            for name, share, score in zip(self.classes, shares[1:], self.scores, strict=True)
        ]
        return viz.overlay(self.image, self.mask(threshold), legend)

    def to_dict(self, threshold: float | None = None) -> dict[str, Any]:
        """Everything but the pixels, as JSON-able values."""
        shares = self.shares(threshold)
        rows = [
            {
                "label": index + 1,
                "name": phrase.name,
                "phrase": phrase.phrase,
                "score": float(self.scores[index]),
                "exponent": float(self.exponents[index]),
                "elbo": float(self.elbo[index]) if np.isfinite(self.elbo[index]) else None,
                "losses": self.losses[index].tolist(),
                "pixel_share": float(shares[index + 1]),
                "heatmap": self._heatmap_name(index),
                "trust": None if self.trust is None else asdict(self.trust[index]),
            }
            for index, phrase in enumerate(self.phrases)
        ]
        return {
            "image": {"width": self.image.width, "height": self.image.height},
            "classes": rows,
            "background_share": float(shares[0]),
            "threshold": self._threshold(threshold),
            "warnings": list(self.warnings),
            "config": self.config.to_dict(),
            **self.provenance,
        }

    def save(self, folder: str | os.PathLike[str], threshold: float | None = None) -> list[Path]:
        """Write mask.png (indexed palette), heatmaps (8-bit grey), overlay.png and result.json.

        result.npz holds the numbers and the picture, for `load`. Files with these names are
        replaced, and heatmaps listed in an earlier result.json are removed; nothing else in the
        folder is touched.
        """
        return save_alignment(self, folder, threshold)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Alignment:
        """The result that `save` wrote into a folder."""
        return cls(**load_alignment(folder))

    def to_coco(
        self,
        threshold: float | None = None,
        *,
        polygons: bool = False,
        instances: bool = True,
        min_area: int = 0,
    ) -> dict[str, Any]:
        """COCO's images, annotations and categories, as JSON-able values.

        An object is a connected region of a class with at least ``min_area`` pixels; without
        ``instances``, the whole of a class is one object. Its score is the mean probability.
        Compressed runs are exact and need pycocotools (extra ``label``); polygons fill holes.
        """
        return as_coco(self, threshold, polygons, instances, min_area)

    def to_supervision(
        self, threshold: float | None = None, *, instances: bool = True, min_area: int = 0
    ) -> Any:
        """The objects of `to_coco` as supervision's ``Detections``; ``class_id`` counts from 0."""
        return as_supervision(self, threshold, instances, min_area)

    def _threshold(self, threshold: float | None) -> float:
        value = self.config.resolved().threshold if threshold is None else threshold
        assert value is not None
        if not 0 <= value <= 1:
            raise ValueError(f"threshold is {value!r}; allowed: 0 to 1")
        return float(value)

    def _heatmap_name(self, index: int) -> str:
        width = len(str(len(self.phrases)))
        return f"heatmap_{index + 1:0{width}d}_{slug(self.classes[index])}.png"


def conclude(
    task: AlignmentTask,
    made: tuple[AlignmentTask, MethodOutput] | None,
    notes: Sequence[str],
    record: Mapping[str, Any],
    own_bounds: bool,
) -> Alignment:
    """The result of a task.

    ``made`` is the task with the classes that are shown, and what the method made of them; None
    where none is. Classes that are not shown have empty maps. The warnings are the ``notes``, the
    method's own, and the classes in doubt. What the provenance says begins with the ``record``.
    ``own_bounds`` says whether the model has bounds of its own for verdicts.
    """
    phrases, config = task.plan.phrases, task.config
    scores = task.scores or Scores.neutral(len(phrases))
    everything = made is not None and len(made[0].plan.phrases) == len(phrases)
    heatmaps = torch.zeros(() if everything else (len(phrases), *task.size))
    ratio = torch.full((len(phrases), *task.latent), -torch.inf)
    evidence = (made[0] if made is not None and everything else task).clear_evidence
    verdicts: list[Any] = [None] * len(phrases) * (evidence is not None)
    if evidence is not None and not everything:
        verdicts = list(absent(evidence, config))
    prompts: tuple[Prompt, ...] = ()
    layers: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    if made is not None:
        shown, output = made
        prompts, layers, warnings = shown.prompts, dict(output.layers), output.warnings
        kept = [phrases.index(phrase) for phrase in shown.plan.phrases]
        own, clear = shown.evidence, shown.clear_evidence
        about = (output.cells, task.encoded.image, own, config)
        finished = finish(output.heatmaps, *about).cpu()
        if everything:
            heatmaps = finished
        else:
            heatmaps[kept] = finished
        if own is not None and clear is not None:
            ratio[kept] = log_ratio(own, config)
            judged = trust(shown.plan.phrases, clear, output.cross.cpu(), config)
            for index, verdict in zip(kept, judged, strict=True):
                verdicts[index] = verdict
        if shown.scores is not None and task.scores is not None:
            scores = dataclasses.replace(scores, scores=scores.scores.clone())
            scores.scores[kept] = shown.scores.scores
    collecting = task.noised.steps.time.tolist() if prompts else []
    last = made[0] if made is not None else task
    texts = last.errors.texts if last.errors is not None else ()
    return Alignment(
        image=task.encoded.image,
        phrases=phrases,
        losses=scores.losses.numpy(),
        elbo=scores.elbo.numpy(),
        scores=scores.scores.numpy(),
        heatmaps=heatmaps.numpy(),
        config=config,
        evidence=ratio.numpy() if verdicts else None,
        trust=tuple(verdicts) or None,
        warnings=(*notes, *warnings, *doubts(phrases, verdicts, own_bounds)),
        provenance={
            **record,
            "layers": layers,
            "prompts": [prompt.text for prompt in prompts],
            "timesteps": {"collect": collecting, "elbo": list(scores.timesteps)},
            "forwards": {
                "collect": len(prompts) * len(collecting),
                "elbo": len(texts) * len(scores.timesteps),
            },
            "source": task.encoded.source,
            "versions": versions(),
        },
    )
