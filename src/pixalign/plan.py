"""What is decided before the network runs: texts, timesteps and noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.prompts import Classes, Prompt, as_phrases, canonical_order, locate, split
from pixalign.schedule import Schedule, Steps, positions
from pixalign.types import Phrase


@dataclass(frozen=True)
class Words:
    """The classes, the attention prompts that hold them, and each class's ELBO text."""

    phrases: tuple[Phrase, ...]
    prompts: tuple[Prompt, ...]
    elbo_texts: tuple[str, ...]


@dataclass(frozen=True)
class Visit:
    """T timesteps and the noise float32 [T, C, h, w] with which they are visited."""

    steps: Steps
    noise: Tensor


def plan_words(
    backbone: Backbone, classes: Classes, caption: str | None, config: AlignConfig
) -> Words:
    """Compose or search the prompts; every text is read whole or refused."""
    phrases = as_phrases(classes)
    if caption is None:
        prompts = _composed(backbone, phrases, config)
    else:
        prompts = [_captioned(backbone, phrases, caption, config)]
    texts = []
    for phrase in phrases if config.calibrate else ():
        words = Phrase(phrase.phrase if config.elbo_text == "phrase" else phrase.name)
        texts.append(split([words], [0], config.template, backbone.fits)[0].text)
    return Words(phrases, tuple(prompts), tuple(texts))


def _composed(backbone: Backbone, phrases: tuple[Phrase, ...], config: AlignConfig) -> list[Prompt]:
    given = config.prompt_order == "given"
    order = list(range(len(phrases))) if given else canonical_order(phrases)
    return split(phrases, order, config.template, backbone.fits, config.columns == "phrase")


def _captioned(
    backbone: Backbone, phrases: tuple[Phrase, ...], caption: str, config: AlignConfig
) -> Prompt:
    prompt = locate(phrases, caption, config.columns == "phrase")
    if not backbone.fits(prompt.text):
        raise ValueError(
            f"the caption is longer than the model's text encoder reads: {caption!r}; "
            "shorten it or leave it out"
        )
    return prompt


def plan_visits(
    schedule: Schedule, latents: Tensor, config: AlignConfig, own: torch.Generator
) -> tuple[Visit, Visit | None]:
    """The collecting visit, and the ELBO's if the maps are to be calibrated.

    Noise is drawn first, for collecting and then for the ELBO, and random timesteps after it:
    so collecting sees the same noise whether or not an ELBO follows.
    """
    shape = latents.shape[1:]
    collect_count = len(config.collect_timesteps or ()) or config.collect_steps
    elbo_count = len(config.elbo_timesteps or ()) or config.elbo_steps
    noise = [
        torch.randn((count, *shape), generator=own, device=own.device, dtype=torch.float32)
        for count in ([collect_count, elbo_count] if config.calibrate else [collect_count])
    ]

    def steps(
        strategy: str,
        count: int,
        bounds: tuple[float, float] | None,
        indices: tuple[int, ...] | None,
    ) -> Steps:
        if indices is not None:
            return schedule.at_indices(indices)
        return schedule.at_positions(positions(strategy, count, bounds, own))

    collecting = steps(
        config.collect_strategy, collect_count, config.collect_range, config.collect_timesteps
    )
    collect = Visit(collecting, noise[0].to(latents.device))
    if not config.calibrate:
        return collect, None
    scoring = steps(config.elbo_strategy, elbo_count, config.elbo_range, config.elbo_timesteps)
    return collect, Visit(scoring, noise[1].to(latents.device))
