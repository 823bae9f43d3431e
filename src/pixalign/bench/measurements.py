"""What the rows of a table need of an image, so that whatever they share is measured once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.alignment.adaptive import expected_change, stages
from pixalign.alignment.calibrate import alignment_scores, exponents, weighted_elbo
from pixalign.bench.exponents import exponents_by
from pixalign.bench.spec import SpecRow
from pixalign.config import AlignConfig
from pixalign.core.protocols import AlignmentModel
from pixalign.diffusion.schedule import Steps
from pixalign.methods import METHODS

# Fields of a resolved config on which the attention that is collected depends, and the losses.
_COLLECTING = (
    "resize", "template", "prompt_order", "class_tokens", "text_encoders", "self_attention",
    "image_only_attention", "collect_steps", "collect_strategy", "collect_range",
    "collect_timesteps",
)  # fmt: skip
_SCORING = (
    "resize", "template", "elbo_text", "elbo_steps", "elbo_strategy", "elbo_range",
    "elbo_timesteps",
)  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """A row on a model: its resolved config, and the names of what it reads.

    ``collecting`` is the name of the attention, ``scoring`` that of the losses; "" reads none.
    Methods that are not separable read attention themselves.
    """

    row: SpecRow
    config: AlignConfig
    collecting: str
    scoring: str

    @classmethod
    def of(cls, row: SpecRow, model: AlignmentModel) -> Measurement:
        """A row on a model."""
        config: AlignConfig = model.resolve(row.config)
        if row.scores is not None:  # centred, a score that all classes share does nothing
            config = dataclasses.replace(config, centred=False)
        attention = _collecting_name(config) if METHODS[row.method].separable else ""
        losses = _scoring_name(config) if config.calibrated and row.scores is None else ""
        return cls(row, config, attention, losses)

    @property
    def name(self) -> str:
        """The row's."""
        return self.row.name

    @property
    def gamma(self) -> float:
        """That of the config, which is resolved."""
        assert self.config.gamma is not None
        return self.config.gamma

    def elbo(self, losses: Tensor, steps: Steps, objective: str) -> Tensor:
        """float64 [N]: the weighted mean of losses [N, T] at those timesteps.

        With a tolerance, of those among them that an ELBO with it would have visited.
        """
        config, weights = self.config, steps.weights(self.config.elbo_weighting, objective)
        if config.elbo_tolerance is not None:
            seen: list[int] = []
            for stage in stages(len(steps), config.elbo_stage):
                seen += stage
                known = losses[:, seen], weights[seen]
                if (
                    expected_change(*known, self.gamma, bool(config.centred))
                    < config.elbo_tolerance
                ):
                    break
            losses, weights = losses[:, sorted(seen)], weights[sorted(seen)]
        return weighted_elbo(losses, weights / weights.sum())

    def scores(self, elbo: Tensor | None, count: int) -> Tensor:
        """The alignment scores S [N] of a row, from its ELBO [N] if it reads one."""
        if elbo is None:
            return torch.full((count,), self.row.scores or 1.0)
        return alignment_scores(elbo, self.gamma)

    def exponents(self, elbo: Tensor | None, count: int, seed: int) -> Tensor:
        """The powers [D, N] of a separable method's maps, by the row's rule."""
        if elbo is None:
            return exponents(self.scores(elbo, count))[None]
        rule, centred = self.row.exponents, bool(self.config.centred)
        return exponents_by(rule, elbo, self.gamma, centred, seed)


def _name(config: AlignConfig, fields: Sequence[str], *further: Any) -> str:
    """A short name that equal settings share."""
    values = config.to_dict()
    text = json.dumps([*(values[field] for field in fields), *further])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _collecting_name(config: AlignConfig) -> str:
    """Random timesteps are drawn after all noise, that of the ELBO among it."""
    drawn = config.collect_strategy == "random" and config.calibrated
    return _name(config, _COLLECTING, config.elbo_count if drawn else 0)


def _scoring_name(config: AlignConfig) -> str:
    """The ELBO's noise is drawn after that of collecting, and its random timesteps last."""
    random = config.elbo_strategy == "random"
    before = _collecting_name(config) if random else config.collect_count
    return _name(config, _SCORING, before)
