"""One picture's work for a method: what goes in, and what comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.alignment.calibrate import calibrate, exponents
from pixalign.alignment.plan import NoisedTimesteps, Passes, PromptPlan
from pixalign.alignment.request import EncodedImage
from pixalign.config import AlignConfig
from pixalign.core.values import Scores, Size, TextCondition
from pixalign.text.prompts import Prompt


@dataclass(frozen=True)
class AlignmentTask:
    """A picture and all that is decided before its attention is read.

    ``plan`` holds the classes, ``prompts`` the texts under which the picture is shown. Without
    ``scores`` nothing is calibrated. ``targets`` uint8 [N, H, W] are a supervised method's: 0, 1,
    and 255 where nothing is known.
    """

    encoded: EncodedImage
    plan: PromptPlan
    caption: str | None
    prompts: tuple[Prompt, ...]
    config: AlignConfig
    scores: Scores | None = None
    targets: Tensor | None = None

    @property
    def size(self) -> Size:
        """The picture's (height, width)."""
        return self.encoded.image.height, self.encoded.image.width

    @property
    def latent(self) -> Size:
        """The latent's (height, width)."""
        return self.encoded.latents.shape[-2], self.encoded.latents.shape[-1]

    @property
    def powers(self) -> Tensor | None:
        """float32 [N]: the exponents of the classes' cross maps."""
        if self.scores is None:
            return None
        return exponents(self.scores.scores, bool(self.config.centred))

    def passes(self, texts: TextCondition, timesteps: NoisedTimesteps) -> Passes:
        """Each text with the picture at every timestep."""
        return Passes.of_one(self.encoded.latents, texts, timesteps)

    def calibrated(self, cross: Tensor, first: int = 0) -> Tensor:
        """minmax(h) ** (1 / S) of maps h [n, h, w] from a class on; without scores, h itself."""
        powers = self.powers
        return cross if powers is None else calibrate(cross, powers[first : first + len(cross)])


@dataclass(frozen=True)
class MethodOutput:
    """Heatmaps float32 [N, H, W] on the CPU, and the uncalibrated cross maps [N, h, w].

    ``layers`` says for the record which layers were read and how they count.
    """

    heatmaps: Tensor
    cross: Tensor
    layers: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def one_each(values: Any, what: str, count: int) -> list[Any]:
    """A value for each image; None stands for none at all."""
    items = [None] * count if values is None else list(values)
    if len(items) != count:
        raise ValueError(f"{len(items)} {what} for {count} images")
    return items


def checked_scores(given: Any, plan: PromptPlan) -> Scores | None:
    """Scores from numbers [N], which must lie in (0, 1]; None stays None."""
    if given is None:
        return None
    values = torch.as_tensor(np.asarray(given, dtype=np.float32))
    count = len(plan.phrases)
    if values.shape != (count,) or not bool(((values > 0) & (values <= 1)).all()):
        raise ValueError(f"scores are {given!r}; allowed: {count} numbers above 0, at most 1")
    return dataclasses.replace(Scores.neutral(count), scores=values)
