"""Scenes of known truth, measured once: everything that any variant of the method needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts, plan_timesteps
from pixalign.alignment.collect import attention_maps
from pixalign.alignment.elbo import class_losses
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import AttentionMaps
from pixalign.diffusion.schedule import Steps
from pixalign.scenes.labelled import LabelledScene, labelled_scenes
from pixalign.scenes.sample import SceneBatch


@dataclass(frozen=True, eq=False)
class Measured:
    """A subject's attention and losses, by the names under which they were asked for."""

    maps: dict[str, AttentionMaps]
    losses: dict[str, Tensor]  # float32 [N, T]
    steps: dict[str, Steps]  # of the losses


def in_groups(
    backbone: Backbone,
    scenes: SceneBatch,
    size: int,
    collecting: Mapping[str, AlignConfig],
    scoring: Mapping[str, AlignConfig],
    batch_size: BatchSize,
    *,
    chunk: int,
    start: int = 0,
    only: Callable[[LabelledScene], bool] = lambda subject: True,
) -> Iterator[list[tuple[LabelledScene, Measured]]]:
    """The scenes from ``start`` on, drawn and measured ``chunk`` at a time, those of ``only``."""
    for first in range(start, len(scenes), chunk):
        drawn = labelled_scenes(
            scenes[first : first + chunk], size, str(backbone.device), first=first
        )
        group = [subject for subject in drawn if only(subject)]
        if group:
            found = measure(backbone, group, collecting, scoring, batch_size)
            yield list(zip(group, found, strict=True))


def measure(
    backbone: Backbone,
    group: Sequence[LabelledScene],
    collecting: Mapping[str, AlignConfig],
    scoring: Mapping[str, AlignConfig],
    batch_size: BatchSize,
) -> list[Measured]:
    """Attention under every collecting config, and losses under every scoring one.

    Configs are resolved. A subject's number is its seed, so each config's maps and losses are
    those of ``Aligner.align(..., seed=number)``. All losses of a subject run as one visit.
    """
    quiet = Progress(0, "", show=False)
    pixels = torch.stack([subject.picture for subject in group]) * 2 - 1
    latents = backbone.encode_image(pixels)
    maps: list[dict[str, AttentionMaps]] = [{} for _ in group]
    for name, config in collecting.items():
        words = _words(backbone, group, config)
        visits = [_visit(backbone, latents, config, subject)[0] for subject in group]
        found = attention_maps(backbone, latents, words, visits, config, batch_size, quiet)
        for mine, one in zip(maps, found, strict=True):
            mine[name] = one
    losses: list[dict[str, Tensor]] = [{} for _ in group]
    steps: list[dict[str, Steps]] = [{} for _ in group]
    if scoring:
        configs = list(scoring.values())
        joint = []
        for subject, own in zip(group, steps, strict=True):
            parts = [_visit(backbone, latents, config, subject)[1] for config in configs]
            visits = [part for part in parts if part is not None]
            own.update(zip(scoring, [visit.steps for visit in visits], strict=True))
            joint.append(NoisedTimesteps.concatenate(visits))
        words = _words(backbone, group, configs[0])
        found_losses = class_losses(backbone, latents, words, joint, batch_size, quiet)
        for kept, own, all_ in zip(losses, steps, found_losses, strict=True):
            lengths = [len(own[name]) for name in scoring]
            kept.update(zip(scoring, torch.split(all_, lengths, dim=1), strict=True))
    return [Measured(*parts) for parts in zip(maps, losses, steps, strict=True)]


def _words(
    backbone: Backbone, group: Sequence[LabelledScene], config: AlignConfig
) -> list[PromptPlan]:
    return [plan_prompts(backbone, subject.names, None, config) for subject in group]


def _visit(
    backbone: Backbone, latents: Tensor, config: AlignConfig, subject: LabelledScene
) -> tuple[NoisedTimesteps, NoisedTimesteps | None]:
    generator = torch.Generator().manual_seed(subject.number)
    return plan_timesteps(backbone.schedule, latents[:1], config, generator)
