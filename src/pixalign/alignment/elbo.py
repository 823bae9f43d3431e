"""The diffusion loss of images under texts: how well the model knows them (Eq. 2 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.alignment.adaptive import expected_change, stages
from pixalign.alignment.calibrate import alignment_scores, weighted_elbo
from pixalign.alignment.plan import NoisedTimesteps, Passes, PromptPlan
from pixalign.backbones import Backbone
from pixalign.config import AlignConfig
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import Scores


def losses(backbone: Backbone, passes: Passes, batch_size: BatchSize, progress: Progress) -> Tensor:
    """Mean squared epsilon-error of each of P texts at its image's T steps.

    The noise is shared by all texts of an image, so that differences between them are due to
    the text alone. All passes go through the network in batches, with its own fused attention.
    Returns float32 [P, T] on the CPU: unweighted, without the factor 1/2.
    """
    errors = torch.empty(len(passes), device=passes.latents.device)

    def work(first: int, last: int) -> None:
        # Out of memory or not, a compiled batch has one of two sizes.
        full = batch_size.of(passes.latents, "elbo")
        while first < last:
            left = len(passes) - first
            together = fixed_size(left, full) if backbone.compiled else last - first
            part = passes.batch(first, first + together)
            estimate = backbone.epsilon(part.z, part.steps, part.texts)
            end = min(first + together, last)
            errors[first:end] = (estimate - part.noise).square().mean((1, 2, 3))[: end - first]
            first = end

    filled = backbone.compiled
    batch_size.each(passes.latents, len(passes), "elbo", work, filled=filled, progress=progress)
    return errors.reshape(-1, passes.steps_each).cpu()


def fixed_size(left: int, full: int) -> int:
    """The size of the next compiled batch: ``full``, or an eighth of it near the end.

    Code is compiled for a size, so batches have one of two sizes and the last is filled up.
    """
    eighth = max(1, full // 8)
    return full if left > 6 * eighth else eighth


class _ClassLosses:
    """Losses of images [B, C, h, w] under the ELBO texts of their classes, encoded once.

    Equal texts of an image share one row, so their losses are equal to the last bit.
    """

    def __init__(
        self,
        backbone: Backbone,
        latents: Tensor,
        plans: Sequence[PromptPlan],
        batch_size: BatchSize,
        progress: Progress,
    ) -> None:
        self.backbone, self.latents, self.plans = backbone, latents, plans
        self.batch_size, self.progress = batch_size, progress
        self.rows = [
            (image, text)
            for image, plan in enumerate(plans)
            for text in dict.fromkeys(plan.elbo_texts)
        ]
        distinct = list(dict.fromkeys(text for _, text in self.rows))
        place = torch.tensor([distinct.index(text) for _, text in self.rows])
        self.texts = backbone.encode_text(distinct)[place.to(latents.device)]

    def at(self, images: Sequence[int], timesteps: Sequence[NoisedTimesteps]) -> list[Tensor]:
        """float32 [N, T] of some of the images, each at its timesteps."""
        kept = [row for row, (image, _) in enumerate(self.rows) if image in images]
        owners = torch.tensor([images.index(self.rows[row][0]) for row in kept])
        chosen, own = (torch.tensor(index).to(self.latents.device) for index in (images, kept))
        noised = NoisedTimesteps.concatenate(timesteps)
        passes = Passes(self.latents[chosen], self.texts[own], owners, noised)
        by_row = losses(self.backbone, passes, self.batch_size, self.progress)
        place = {self.rows[row]: index for index, row in enumerate(kept)}
        return [
            by_row[[place[image, text] for text in self.plans[image].elbo_texts]]
            for image in images
        ]


def class_losses(
    backbone: Backbone,
    latents: Tensor,
    plans: Sequence[PromptPlan],
    timesteps: Sequence[NoisedTimesteps],
    batch_size: BatchSize,
    progress: Progress,
) -> list[Tensor]:
    """Each image's losses float32 [N, T] under the ELBO texts of its classes."""
    of = _ClassLosses(backbone, latents, plans, batch_size, progress)
    return of.at(range(len(plans)), timesteps)


def class_scores(
    backbone: Backbone,
    latents: Tensor,
    plans: Sequence[PromptPlan],
    timesteps: Sequence[NoisedTimesteps],
    config: AlignConfig,
    batch_size: BatchSize,
    progress: Progress,
) -> list[Scores]:
    """Each image's scores: losses, their weighted mean, S.

    Under a tolerance the timesteps are visited in stages, and each image leaves when more of them
    would hardly change its exponents; the others go on together.
    """
    gamma, centred, tolerance = config.gamma, bool(config.centred), config.elbo_tolerance
    assert gamma is not None, "the config must be resolved"
    weights = [v.steps.weights(config.elbo_weighting, backbone.objective) for v in timesteps]
    count = len(timesteps[0].steps)
    visited = [list(range(count))] if tolerance is None else stages(count, config.elbo_stage)
    seen: list[list[int]] = [[] for _ in plans]
    losses = [torch.empty(len(plan.elbo_texts), count) for plan in plans]
    measured = _ClassLosses(backbone, latents, plans, batch_size, progress)
    going = list(range(len(plans)))

    def settled(image: int) -> bool:
        places = seen[image]
        known = losses[image][:, places], weights[image][places]
        return tolerance is not None and not expected_change(*known, gamma, centred) >= tolerance

    for stage in visited:
        parts = measured.at(going, [timesteps[image].at(stage) for image in going])
        for image, part in zip(going, parts, strict=True):
            seen[image] += stage
            losses[image][:, stage] = part
        going = [image for image in going if not settled(image)]
        if not going:
            break
    scores = []
    for own, places, weight, noised in zip(losses, seen, weights, timesteps, strict=True):
        at = sorted(places)
        bounds = weighted_elbo(own[:, at], weight[at] / weight[at].sum())
        times = tuple(noised.steps.time[at].tolist())
        scores.append(Scores(own[:, at], bounds.float(), alignment_scores(bounds, gamma), times))
    return scores
