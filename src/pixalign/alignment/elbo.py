"""The diffusion loss of images under texts: in whole (Eq. 2 and 5), and at every position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pixalign.alignment.calibrate import alignment_scores, weighted_elbo
from pixalign.alignment.plan import NoisedTimesteps, Passes
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import Evidence, Scores, TextCondition
from pixalign.diffusion.schedule import Steps

EMPTY = ""  # the text that says nothing


@dataclass(frozen=True, eq=False)
class TextErrors:
    """An image's epsilon-errors under M texts at T timesteps: float32 on the CPU.

    ``losses`` [M, T] are mean squared errors, unweighted and without the factor 1/2. ``maps``
    [2, M, T, h, w], where they were asked for, say what a text changes at every position: with
    eps_0 the estimate under the empty text, r = eps - eps_0 what that one misses and
    d = eps_text - eps_0 what the text adds, they are r d and d^2, means over the channels, divided
    by the mean of r^2 over the whole picture, so that no timestep dominates. ``missed``
    [T, C, h, w] is r.
    """

    texts: tuple[str, ...]
    steps: Steps
    losses: Tensor
    maps: Tensor | None = None
    missed: Tensor | None = None

    def of(self, texts: Sequence[str]) -> TextErrors:
        """The rows of those texts, repeats allowed."""
        rows = [self.texts.index(text) for text in texts]
        maps = None if self.maps is None else self.maps[:, rows]
        return replace(self, texts=tuple(texts), losses=self.losses[rows], maps=maps)

    def at(self, timesteps: Tensor) -> TextErrors:
        """The same texts at the timesteps of those indices."""
        maps = None if self.maps is None else self.maps[:, :, timesteps]
        missed = None if self.missed is None else self.missed[timesteps]
        losses, steps = self.losses[:, timesteps], self.steps[timesteps]
        return TextErrors(self.texts, steps, losses, maps, missed)

    def joined(self, other: TextErrors) -> TextErrors:
        """These texts and further ones of the same image at the same timesteps."""
        new = other.of([text for text in other.texts if text not in self.texts])
        maps = (
            None if self.maps is None or new.maps is None else torch.cat([self.maps, new.maps], 1)
        )
        losses = torch.cat([self.losses, new.losses])
        return replace(self, texts=(*self.texts, *new.texts), losses=losses, maps=maps)

    def evidence(self, least_log_snr: float = -math.inf) -> Evidence:
        """Means over the timesteps of what each text changes.

        Only timesteps of that log signal-to-noise ratio or more count, or all if there are none.
        """
        assert self.maps is not None
        clear = self.steps.log_snr() >= least_log_snr
        return Evidence(*(self.maps[:, :, clear] if clear.any() else self.maps).mean(2))

    def by_position(self) -> Tensor:
        """float32 [M, h, w]: the squared error r^2 - 2 r d + d^2 under each text, at each place."""
        assert self.maps is not None
        assert self.missed is not None
        projection, energy = self.maps
        squares = self.missed.square().mean(1)
        squares /= squares.mean((1, 2), keepdim=True)
        errors: Tensor = squares - 2 * projection + energy
        return errors.mean(1)

    def scores(self, config: AlignConfig, objective: str) -> Scores:
        """Losses, their weighted mean and S, a row a text; under a resolved config."""
        assert config.gamma is not None
        bounds = weighted_elbo(self.losses, self.steps.weights(config.elbo_weighting, objective))
        times = tuple(self.steps.time.tolist())
        return Scores(self.losses, bounds.float(), alignment_scores(bounds, config.gamma), times)


def text_errors(
    backbone: Backbone,
    latents: Tensor,
    texts: Sequence[Sequence[str]],
    timesteps: Sequence[NoisedTimesteps],
    batch_size: BatchSize,
    progress: Progress,
    *,
    by_position: bool = False,
    missed: Sequence[Tensor] | None = None,
) -> list[TextErrors]:
    """The errors of images [B, C, h, w] under texts of their own, each at its T timesteps.

    The noise is shared by all texts of an image, so that differences between them are due to the
    text alone; equal texts of an image share one row. ``by_position`` adds the maps, and the empty
    text to each image's, unless what it ``missed`` is known from earlier texts at these timesteps.
    All passes go through the network in batches, with its own fused attention.
    """
    first = (EMPTY,) if by_position and missed is None else ()
    own = [tuple(dict.fromkeys((*first, *of_image))) for of_image in texts]
    owners = torch.tensor([image for image, of_image in enumerate(own) for _ in of_image])
    rows = [text for of_image in own for text in of_image]
    noised = NoisedTimesteps.concatenate(timesteps)
    passes = Passes(latents, encoded_texts(backbone, rows), owners, noised)
    empty = torch.tensor([text == EMPTY for text in rows]) if by_position else None
    known = None if missed is None else torch.cat(list(missed))
    losses, maps, rest = _errors(backbone, passes, batch_size, progress, empty, known)
    counts = list(map(len, own))
    columns: list[Any] = [own, [each.steps for each in timesteps], torch.split(losses, counts)]
    if by_position:
        columns += [torch.split(maps, counts, 1), rest]
    return [TextErrors(*of_image) for of_image in zip(*columns, strict=True)]


def encoded_texts(backbone: Backbone, texts: Sequence[str]) -> TextCondition:
    """The texts' embeddings [P], each encoded once; the empty one is what guidance leads from."""
    alike = type(backbone).unconditional is Backbone.unconditional
    distinct = [text for text in dict.fromkeys(texts) if alike or text != EMPTY]
    parts = [backbone.encode_text(distinct)] if distinct else []
    if EMPTY in texts and not alike:
        parts.append(backbone.unconditional())
        distinct.append(EMPTY)
    place = torch.tensor([distinct.index(text) for text in texts])
    return TextCondition.concatenate(parts)[place.to(backbone.device)]


def _errors(
    backbone: Backbone,
    passes: Passes,
    batch_size: BatchSize,
    progress: Progress,
    empty: Tensor | None,
    known: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [P, T], maps [2, P, T, h, w] and r [B, T, C, h, w], as in `TextErrors`.

    ``empty`` bool [P] says which texts are empty; None asks for losses alone. Each image's empty
    text stands before its others, so what it misses is known by then, or ``known`` [B * T, C, h, w]
    is r.
    """
    noise = passes.timesteps.noise
    losses = noise.new_empty(len(passes))
    missed = torch.empty_like(noise if empty is not None else noise[:0])  # r, [B * T, C, h, w]
    if known is not None:
        missed.copy_(known)
    maps = torch.empty(2, len(passes) if empty is not None else 0, *noise.shape[2:])

    def work(first: int, last: int) -> None:
        part = passes.batch(first, last)
        error = backbone.epsilon(part.z, part.steps, part.texts) - part.noise
        losses[first:last] = error.square().mean((1, 2, 3))
        if empty is None:
            return
        place, nothing = part.place.to(noise.device), empty[part.text].to(noise.device)
        missed[place[nothing]] = -error[nothing]
        rest = missed[place]
        added = error + rest
        products = torch.stack([rest * added, added.square()]).mean(2)
        scale = rest.square().mean((1, 2, 3))[:, None, None]
        maps[:, first:last] = (products / scale).cpu()

    batch_size.each(passes.latents, len(passes), "elbo", work, progress=progress)
    steps, texts, shape = passes.steps_each, len(passes.texts), noise.shape[1:]
    asked = empty is not None
    return (
        losses.reshape(texts, steps).cpu(),
        maps.reshape(2, texts * asked, steps, *shape[1:]),
        missed.reshape(len(passes.latents) * asked, steps, *shape).cpu(),
    )
