"""What the rows of a table need of an image, so that whatever they share is measured once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.alignment.adaptive import expected_change, stages
from pixalign.alignment.calibrate import alignment_scores, exponents, weighted_elbo
from pixalign.alignment.plan import NoisedTimesteps
from pixalign.bench.exponents import EXPONENTS
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

    ``collecting`` is the name of the attention, ``scoring`` that of the losses; None reads none.
    Methods that are not separable read attention themselves.
    """

    row: SpecRow
    config: AlignConfig
    collecting: str | None
    scoring: str | None

    def elbo(self, losses: Tensor, steps: Steps, objective: str) -> Tensor:
        """float64 [N]: the weighted mean of losses [N, T] at those timesteps."""
        weights = steps.weights(self.config.elbo_weighting, objective)
        visited = _visited(losses, weights, self.config)
        return weighted_elbo(losses[:, visited], weights[visited] / weights[visited].sum())

    def scores(self, elbo: Tensor | None, count: int) -> Tensor:
        """The alignment scores S [N] of a row, from its ELBO [N] if it reads one."""
        if self.row.scores is not None or elbo is None:
            return torch.full((count,), 1.0 if self.row.scores is None else self.row.scores)
        assert self.config.gamma is not None
        return alignment_scores(elbo, self.config.gamma)

    def exponents(self, elbo: Tensor | None, count: int, seed: int) -> Tensor:
        """The powers [D, N] of a separable method's maps, by the row's rule."""
        if elbo is None:
            return exponents(self.scores(elbo, count))[None]
        assert self.config.gamma is not None
        rule = EXPONENTS[self.row.exponents]
        return rule.make(elbo, self.config.gamma, bool(self.config.centred), seed)


@dataclass(frozen=True)
class Measurements:
    """The rows of one table, and one config for each distinct measurement."""

    rows: tuple[Measurement, ...]
    collecting: Mapping[str, AlignConfig]
    scoring: Mapping[str, AlignConfig]

    @classmethod
    def of(cls, rows: Sequence[SpecRow], model: AlignmentModel) -> Measurements:
        """The rows on a model."""
        measurements = []
        collecting: dict[str, AlignConfig] = {}
        scoring: dict[str, AlignConfig] = {}
        for row in rows:
            config = model.resolve(row.config)
            if row.scores is not None:  # centred, a score that all classes share does nothing
                config = dataclasses.replace(config, centred=False)
            attention = _collecting_name(config) if METHODS[row.method].separable else None
            losses = _scoring_name(config) if config.calibrated and row.scores is None else None
            measurements.append(Measurement(row, config, attention, losses))
            if attention is not None:
                collecting.setdefault(attention, config)
            if losses is not None:
                scoring.setdefault(losses, config)
        return cls(tuple(measurements), collecting, scoring)


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
    random = "random" in (config.collect_strategy, config.elbo_strategy)
    before = _collecting_name(config) if random else config.collect_count
    return _name(config, _SCORING, before)


def _visited(losses: Tensor, weights: Tensor, config: AlignConfig) -> list[int]:
    """The timesteps that an ELBO with a tolerance would have visited; else all."""
    count = losses.shape[1]
    if config.elbo_tolerance is None:
        return list(range(count))
    assert config.gamma is not None
    seen: list[int] = []
    for stage in stages(count, config.elbo_stage):
        seen += stage
        change = expected_change(losses[:, seen], weights[seen], config.gamma, bool(config.centred))
        if change < config.elbo_tolerance:
            break
    return sorted(seen)


def union(timesteps: Mapping[str, NoisedTimesteps]) -> tuple[NoisedTimesteps, dict[str, Tensor]]:
    """Every distinct (timestep, noise) once, and at which indices each name finds its own."""
    known: dict[tuple[float, bytes], int] = {}
    kept: list[NoisedTimesteps] = []
    indices: dict[str, Tensor] = {}
    for name, noised in timesteps.items():
        own = []
        for index, time in enumerate(noised.steps.time.tolist()):
            noise = noised.noise[index].cpu().contiguous().numpy().tobytes()
            key = (time, hashlib.blake2b(noise, digest_size=16).digest())
            if key not in known:
                known[key] = len(kept)
                kept.append(noised.at([index]))
            own.append(known[key])
        indices[name] = torch.tensor(own)
    return NoisedTimesteps.concatenate(kept), indices


def of_one_length(timesteps: Sequence[NoisedTimesteps]) -> list[NoisedTimesteps]:
    """The images' timesteps, shorter ones with their last repeated, so that images run together.

    Where timesteps are random, one image's may coincide and another's not.
    """
    longest = max(len(noised.steps) for noised in timesteps)
    return [
        noised.at([min(index, len(noised.steps) - 1) for index in range(longest)])
        for noised in timesteps
    ]
