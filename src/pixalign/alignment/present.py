"""Which of many candidates are in a picture at all, before anyone asks where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pixalign.alignment.elbo import text_errors
from pixalign.alignment.plan import plan_prompts, plan_timesteps
from pixalign.alignment.request import encode_image
from pixalign.alignment.trust import presence, standing, there
from pixalign.config import AlignConfig
from pixalign.core.checks import check_seed
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Evidence, Phrase
from pixalign.text.prompts import Classes, as_phrases

_TOGETHER = 64  # candidates whose maps are held at once


@dataclass(frozen=True)
class Candidate:
    """A class, how surely it is in the picture, and the verdict.

    ``presence`` is the share of what the empty text misses that the class's text explains, and
    ``standing`` is the part of it that no other class standing as high explains as well
    (`pixalign.alignment.trust`).
    """

    name: str
    presence: float
    standing: float
    present: bool


def rank_present(
    model: AlignmentModel, image: Any, classes: Classes, config: AlignConfig, seed: int
) -> list[Candidate]:
    """The candidates, the highest standing first: a pass for each class and timestep.

    For each 64 of them there is one more a timestep, without text. ``config`` is resolved, for a
    method by position.
    """
    backbone = model.backbone
    phrases = as_phrases(classes)
    encoded = encode_image(backbone, image, config.resize)
    check_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    _, noised = plan_timesteps(backbone.schedule, encoded.latents, config, generator)
    assert noised is not None, "the config must measure"
    parts = [phrases[first : first + _TOGETHER] for first in range(0, len(phrases), _TOGETHER)]
    passes = (len(phrases) + len(parts)) * len(noised.steps)
    measured: list[Evidence] = []
    with Progress(passes, "present", model.progress) as progress:
        for part in parts:
            texts = plan_prompts(backbone, part, None, config).elbo_texts
            how = (model.batch_size, progress)
            (errors,) = text_errors(
                backbone, encoded.latents, [texts], [noised], *how, by_position=True
            )
            measured.append(errors.of(texts).evidence(config.absent_log_snr))
    return rank(phrases, Evidence.concatenate(measured), config)


def rank(phrases: Sequence[Phrase], evidence: Evidence, config: AlignConfig) -> list[Candidate]:
    """The candidates, the highest standing first, by evidence that is measured."""
    columns = (presence(evidence, config), standing(evidence, config), there(evidence, config))
    rows = zip(phrases, *(column.tolist() for column in columns), strict=True)
    listed = [Candidate(phrase.name, *levels) for phrase, *levels in rows]
    return sorted(listed, key=lambda each: (-each.standing, -each.presence))
