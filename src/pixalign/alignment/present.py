"""Which of many candidates are in a picture at all, before anyone asks where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pixalign.alignment.elbo import text_errors
from pixalign.alignment.plan import plan_prompts, plan_timesteps
from pixalign.alignment.request import encode_image
from pixalign.alignment.trust import absence_bound, presence
from pixalign.config import AlignConfig
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.text.prompts import Classes, as_phrases

_TOGETHER = 64  # candidates whose maps are held at once


@dataclass(frozen=True)
class Candidate:
    """A class, how strongly its text explains some part of the picture, and the verdict."""

    name: str
    presence: float
    present: bool


def rank_present(
    model: AlignmentModel, image: Any, classes: Classes, config: AlignConfig, seed: int
) -> list[Candidate]:
    """The candidates, the most present first: a pass for each class and timestep.

    For each 64 of them there is one more a timestep, without text. ``config`` is resolved, for a
    method by position. Presence does not depend on the other candidates, so the list may be long.
    """
    backbone = model.backbone
    phrases = as_phrases(classes)
    encoded = encode_image(backbone, image, config.resize)
    generator = torch.Generator().manual_seed(seed)
    _, noised = plan_timesteps(backbone.schedule, encoded.latents, config, generator)
    assert noised is not None, "the config must measure"
    bound = absence_bound(config)
    presences: list[float] = []
    parts = [phrases[first : first + _TOGETHER] for first in range(0, len(phrases), _TOGETHER)]
    passes = (len(phrases) + len(parts)) * len(noised.steps)
    with Progress(passes, "present", model.progress) as progress:
        for part in parts:
            texts = plan_prompts(backbone, part, None, config).elbo_texts
            how = (model.batch_size, progress)
            (errors,) = text_errors(
                backbone, encoded.latents, [texts], [noised], *how, by_position=True
            )
            presences += presence(errors.of(texts).evidence()).tolist()
    pairs = zip(phrases, presences, strict=True)
    listed = [Candidate(phrase.name, x, x >= bound) for phrase, x in pairs]
    return sorted(listed, key=lambda candidate: -candidate.presence)
