"""The benchmark's scenes as tuning and the lab's benchmarks read them: attention and losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pixalign.alignment.collect import attention_maps
from pixalign.alignment.elbo import TextErrors, text_errors
from pixalign.alignment.plan import plan_prompts
from pixalign.bench.datasets import open_dataset
from pixalign.bench.subject import Subject
from pixalign.config import AlignConfig
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import AttentionMaps
from pixalign.text.prompts import Classes

_CHUNK = 24  # scenes in memory at once


def scene_groups(
    model: AlignmentModel, split: str, count: int, *, show: bool = True
) -> Iterator[tuple[list[Subject], Tensor]]:
    """Scenes of 2 to 4 objects, a few at a time, with their latents [B, C, h, w]."""
    dataset = open_dataset("lab", None, split, count)
    with Progress(len(dataset), f"scenes of {split}", show, "scene") as progress:
        for first in range(0, len(dataset), _CHUNK):
            places = range(first, min(first + _CHUNK, len(dataset)))
            group = [Subject(dataset[place], place, dataset.classes, 0) for place in places]
            pictures = [model.encode(subject.sample.image) for subject in group]
            yield group, torch.cat([picture.latents for picture in pictures])
            progress.advance(len(group))


def scene_attention(
    model: AlignmentModel,
    group: Sequence[Subject],
    latents: Tensor,
    config: AlignConfig,
    classes: Sequence[Classes] | None = None,
) -> list[AttentionMaps]:
    """Each scene's attention under its own classes, or others."""
    asked = classes or [subject.phrases for subject in group]
    plans = [plan_prompts(model.backbone, names, None, config) for names in asked]
    timesteps = [subject.timesteps(model.backbone, latents, config)[0] for subject in group]
    quiet, batch_size = Progress(0, "", show=False), model.batch_size
    return attention_maps(model.backbone, latents, plans, timesteps, config, batch_size, quiet)


def scene_errors(
    model: AlignmentModel, group: Sequence[Subject], latents: Tensor, config: AlignConfig
) -> list[TextErrors]:
    """Each scene's errors under the texts of its classes, at every position."""
    plans = [plan_prompts(model.backbone, subject.phrases, None, config) for subject in group]
    planned = [subject.timesteps(model.backbone, latents, config)[1] for subject in group]
    timesteps = [noised for noised in planned if noised is not None]
    texts, how = [plan.elbo_texts for plan in plans], (model.batch_size, Progress(0, "", False))
    errors = text_errors(model.backbone, latents, texts, timesteps, *how, by_position=True)
    return [own.of(of_classes) for own, of_classes in zip(errors, texts, strict=True)]
