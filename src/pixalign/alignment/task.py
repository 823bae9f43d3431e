"""One picture on its way through Algorithm 1: what is decided, and what the passes said."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixalign.alignment.calibrate import calibrate, exponents
from pixalign.alignment.elbo import EMPTY, TextErrors
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan
from pixalign.alignment.request import EncodedImage
from pixalign.config import AlignConfig
from pixalign.core.values import Evidence, Scores, Size
from pixalign.text.prompts import Prompt


@dataclass(frozen=True)
class AlignmentTask:
    """A picture with its classes, under a resolved config.

    ``plan`` holds the classes, ``prompts`` the texts under which attention is read, at
    ``timesteps`` once they are drawn, and ``texts`` those whose ``errors`` are measured, at
    ``scoring``, with noise of that ``seed``. ``scores`` are given or measured. ``targets`` uint8
    [N, H, W] are a supervised method's: 0, 1, and 255 where nothing is known.
    """

    encoded: EncodedImage
    plan: PromptPlan
    caption: str | None
    prompts: tuple[Prompt, ...]
    config: AlignConfig
    seed: int
    texts: tuple[str, ...] = ()
    scores: Scores | None = None
    targets: Tensor | None = None
    scores_given: bool = False
    timesteps: NoisedTimesteps | None = None
    scoring: NoisedTimesteps | None = None
    errors: TextErrors | None = None

    @property
    def size(self) -> Size:
        """The picture's (height, width)."""
        return self.encoded.image.height, self.encoded.image.width

    @property
    def latent(self) -> Size:
        """The latent's (height, width)."""
        return self.encoded.latents.shape[-2], self.encoded.latents.shape[-1]

    @property
    def company(self) -> tuple[Size, str]:
        """What tasks that share batches have in common."""
        return self.latent, self.encoded.group

    @property
    def noised(self) -> NoisedTimesteps:
        """The timesteps, which are drawn by now."""
        assert self.timesteps is not None
        return self.timesteps

    @property
    def lacking(self) -> tuple[str, ...]:
        """The texts that are still to be measured, the empty one too where maps need it."""
        asked = (EMPTY, *self.texts) if self.texts and self.config.by_position else self.texts
        known = self.errors.texts if self.errors else ()
        return tuple(text for text in dict.fromkeys(asked) if text not in known)

    @property
    def read(self) -> tuple[str, ...]:
        """All that the text encoders read for it, as far as it is known."""
        return *self.lacking, *(prompt.text for prompt in self.prompts)

    @cached_property
    def evidence(self) -> Evidence | None:
        """What the passes say of the classes at every position, where they were asked."""
        if self.errors is None or not self.config.by_position:
            return None
        return self.errors.of(self.plan.elbo_texts).evidence()

    @cached_property
    def clear_evidence(self) -> Evidence | None:
        """The same where noise does not drown the picture: verdicts are read from it."""
        if self.errors is None or not self.config.by_position:
            return None
        return self.errors.of(self.plan.elbo_texts).evidence(self.config.absent_log_snr)

    @property
    def powers(self) -> Tensor | None:
        """float32 [N]: the exponents of the classes' cross maps, where scores act on them."""
        if self.scores is None or self.config.calibrate != "elbo":
            return None
        return exponents(self.scores.scores, bool(self.config.centred))

    def calibrated(self, cross: Tensor, first: int = 0) -> Tensor:
        """minmax(h) ** (1 / S) of maps h [n, h, w] from a class on; without powers, h itself."""
        powers = self.powers
        return cross if powers is None else calibrate(cross, powers[first : first + len(cross)])


def alike_together(sizes: Sequence[Size]) -> list[int]:
    """The places of the sizes, those of one size together, in the order of their first."""
    first = {size: index for index, size in reversed(list(enumerate(sizes)))}
    return sorted(range(len(sizes)), key=lambda index: first[sizes[index]])


def pixels(tasks: Sequence[AlignmentTask]) -> int:
    """How many pixels their pictures have in all."""
    return sum(task.size[0] * task.size[1] for task in tasks)


def checked_scores(given: Any, plan: PromptPlan) -> Scores | None:
    """Scores from numbers [N], which must lie in (0, 1]; None stays None."""
    if given is None:
        return None
    values = torch.as_tensor(np.asarray(given, dtype=np.float32))
    count = len(plan.phrases)
    if values.shape != (count,) or not bool(((values > 0) & (values <= 1)).all()):
        raise ValueError(f"scores are {given!r}; allowed: {count} numbers above 0, at most 1")
    return dataclasses.replace(Scores.neutral(count), scores=values)
