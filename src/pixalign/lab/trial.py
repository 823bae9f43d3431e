"""Scenes of known truth, measured once: everything that any variant of the method needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.batching import BatchSize
from pixalign.config import AlignConfig
from pixalign.measure import attention_maps, class_losses
from pixalign.plan import Visit, Words, plan_visits, plan_words
from pixalign.progress import Progress
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import APART as APART
from pixalign.scenes.draw import draw_scenes as draw_scenes
from pixalign.scenes.render import render
from pixalign.scenes.sample import SceneBatch
from pixalign.schedule import Steps
from pixalign.types import AttentionMaps


@dataclass(frozen=True, eq=False)
class Subject:
    """One scene: its picture float32 [3, H, W] in [0, 1], in 8-bit steps, and the truth.

    ``truth`` int64 [H, W] is 0 on the background and i on class ``labels[i - 1]``. ``labels``
    are the classes with a visible pixel, in the order in which the caption names them; ``area``
    is each one's share of the picture and ``visible`` the share of it that nothing covers.
    """

    picture: Tensor
    truth: Tensor
    labels: tuple[int, ...]
    area: tuple[float, ...]
    visible: tuple[float, ...]
    number: int

    @property
    def names(self) -> list[str]:
        """The classes' names."""
        return [class_names()[label] for label in self.labels]


@dataclass(frozen=True, eq=False)
class Measured:
    """A subject's attention and losses, by the names under which they were asked for."""

    maps: dict[str, AttentionMaps]
    losses: dict[str, Tensor]  # float32 [N, T]
    steps: dict[str, Steps]  # of the losses


def subjects(batch: SceneBatch, size: int, device: str, first: int = 0) -> list[Subject]:
    """The scenes as an aligner sees them."""
    drawn = render(batch, size=size, device=device)
    shares = torch.stack([(drawn.slots == s + 1).sum((1, 2)) for s in range(drawn.areas.shape[1])])
    pictures = (drawn.images * 255).round() / 255
    found = []
    for index in range(len(batch)):
        mask, seen, alone = drawn.masks[index].long(), shares[:, index], drawn.areas[index]
        slots: dict[int, list[int]] = {}
        for slot in batch.order[index].tolist():
            if batch.labels[index][slot] >= 0:
                slots.setdefault(int(batch.labels[index][slot]), []).append(slot)
        present = [label for label in slots if int(seen[slots[label]].sum())]
        truth = torch.zeros_like(mask)
        for place, label in enumerate(present):
            truth[mask == label + 1] = place + 1
        pixels = [int(seen[slots[label]].sum()) for label in present]
        whole = [int(alone[slots[label]].sum()) for label in present]
        found.append(
            Subject(
                picture=pictures[index],
                truth=truth,
                labels=tuple(present),
                area=tuple(count / truth.numel() for count in pixels),
                visible=tuple(s / max(w, 1) for s, w in zip(pixels, whole, strict=True)),
                number=first + index,
            )
        )
    return found


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
    only: Callable[[Subject], bool] = lambda subject: True,
) -> Iterator[list[tuple[Subject, Measured]]]:
    """The scenes from ``start`` on, drawn and measured ``chunk`` at a time, those of ``only``."""
    for first in range(start, len(scenes), chunk):
        drawn = subjects(scenes[first : first + chunk], size, str(backbone.device), first=first)
        group = [subject for subject in drawn if only(subject)]
        if group:
            found = measure(backbone, group, collecting, scoring, batch_size)
            yield list(zip(group, found, strict=True))


def measure(
    backbone: Backbone,
    group: Sequence[Subject],
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
            joint.append(Visit.concatenate(visits))
        words = _words(backbone, group, configs[0])
        found_losses = class_losses(backbone, latents, words, joint, batch_size, quiet)
        for kept, own, all_ in zip(losses, steps, found_losses, strict=True):
            lengths = [len(own[name]) for name in scoring]
            kept.update(zip(scoring, torch.split(all_, lengths, dim=1), strict=True))
    return [Measured(*parts) for parts in zip(maps, losses, steps, strict=True)]


def _words(backbone: Backbone, group: Sequence[Subject], config: AlignConfig) -> list[Words]:
    return [plan_words(backbone, subject.names, None, config) for subject in group]


def _visit(
    backbone: Backbone, latents: Tensor, config: AlignConfig, subject: Subject
) -> tuple[Visit, Visit | None]:
    generator = torch.Generator().manual_seed(subject.number)
    return plan_visits(backbone.schedule, latents[:1], config, generator)
