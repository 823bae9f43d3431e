"""What the rows of a table need of an image, so that whatever they share is measured once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.alignment.adaptive import expected_change, stages
from pixalign.alignment.calibrate import alignment_scores, weighted_elbo
from pixalign.alignment.plan import NoisedTimesteps
from pixalign.bench.spec import Row
from pixalign.config import AlignConfig
from pixalign.diffusion.schedule import Steps

# Fields of a resolved config on which the attention that is collected depends, and the losses.
_COLLECTING = (
    "resize", "template", "prompt_order", "columns", "text_encoders", "self_attention",
    "image_only_attention", "collect_steps", "collect_strategy", "collect_range",
    "collect_timesteps",
)  # fmt: skip
_SCORING = (
    "resize", "template", "elbo_text", "elbo_steps", "elbo_strategy", "elbo_range",
    "elbo_timesteps",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A row on a model: its resolved config, and the names of what it reads.

    ``collecting`` is the name of the attention, ``scoring`` that of the losses; None reads none.
    Methods other than the paper's read attention themselves.
    """

    row: Row
    config: AlignConfig
    collecting: str | None
    scoring: str | None


@dataclass(frozen=True)
class Points:
    """The rows of one table, and one config for each distinct measurement."""

    points: tuple[Point, ...]
    collecting: Mapping[str, AlignConfig]
    scoring: Mapping[str, AlignConfig]

    @classmethod
    def of(cls, rows: Sequence[Row], family: str, own: Mapping[str, Any]) -> Points:
        """The rows on a model of that family with those settings of its own."""
        points = []
        collecting: dict[str, AlignConfig] = {}
        scoring: dict[str, AlignConfig] = {}
        for row in rows:
            config = row.config.resolved(family, own)
            attention = _collecting_name(config) if row.method == "elbo" else None
            losses = _scoring_name(config) if config.calibrate and row.scores is None else None
            points.append(Point(row, config, attention, losses))
            if attention is not None:
                collecting.setdefault(attention, config)
            if losses is not None:
                scoring.setdefault(losses, config)
        return cls(tuple(points), collecting, scoring)


def _name(config: AlignConfig, fields: Sequence[str], *further: Any) -> str:
    """A short name that equal settings share."""
    values = config.to_dict()
    text = json.dumps([*(values[field] for field in fields), *further])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _collecting_name(config: AlignConfig) -> str:
    """Random timesteps are drawn after all noise, that of the ELBO among it."""
    drawn = config.collect_strategy == "random" and config.calibrate
    return _name(config, _COLLECTING, config.elbo_count if drawn else 0)


def _scoring_name(config: AlignConfig) -> str:
    """The ELBO's noise is drawn after that of collecting, and its random timesteps last."""
    random = "random" in (config.collect_strategy, config.elbo_strategy)
    before = _collecting_name(config) if random else config.collect_count
    return _name(config, _SCORING, before)


def scores(
    point: Point, losses: Tensor | None, steps: Steps | None, objective: str, count: int
) -> Tensor:
    """The alignment scores [N] of a row, from losses [N, T] at its steps."""
    config = point.config
    if point.row.scores is not None:
        return torch.full((count,), point.row.scores)
    if losses is None or steps is None:
        return torch.ones(count)
    assert config.gamma is not None
    weights = steps.weights(config.elbo_weighting, objective)
    places = _visited(losses, weights, config)
    kept = weights[places] / weights[places].sum()
    return alignment_scores(weighted_elbo(losses[:, places], kept), config.gamma)


def is_centred(point: Point) -> bool:
    """Whether a row's exponents are; a score that all classes share would then do nothing."""
    return bool(point.config.centred) and point.row.scores is None


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


def union(visits: Mapping[str, NoisedTimesteps]) -> tuple[NoisedTimesteps, dict[str, Tensor]]:
    """One visit of every distinct (timestep, noise), and where each of the visits finds its own."""
    found: dict[tuple[float, bytes], int] = {}
    kept: list[NoisedTimesteps] = []
    places: dict[str, Tensor] = {}
    for name, visit in visits.items():
        mine = []
        for index, time in enumerate(visit.steps.time.tolist()):
            noise = visit.noise[index].cpu().contiguous().numpy().tobytes()
            key = (time, hashlib.blake2b(noise, digest_size=16).digest())
            if key not in found:
                found[key] = len(kept)
                kept.append(visit.at([index]))
            mine.append(found[key])
        places[name] = torch.tensor(mine)
    return NoisedTimesteps.concatenate(kept), places


def of_one_length(visits: Sequence[NoisedTimesteps]) -> list[NoisedTimesteps]:
    """The visits, shorter ones with their last timestep repeated: images run together.

    Where timesteps are random, one image's may coincide and another's not.
    """
    longest = max(len(visit.steps) for visit in visits)
    return [
        visit.at([min(place, len(visit.steps) - 1) for place in range(longest)]) for visit in visits
    ]
