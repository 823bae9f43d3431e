"""The diffusion loss of images under texts: how well the model knows them (Eq. 2 and 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
            progress.advance(end - first)
            first = end

    batch_size.each(passes.latents, len(passes), "elbo", work, filled=backbone.compiled)
    return errors.reshape(-1, passes.steps_each).cpu()


def fixed_size(left: int, full: int) -> int:
    """The size of the next compiled batch: ``full``, or an eighth of it near the end.

    Code is compiled for a size, so batches have one of two sizes and the last is filled up.
    """
    eighth = max(1, full // 8)
    return full if left > 6 * eighth else eighth


class _ElboTexts:
    """The ELBO texts of some images' classes, encoded once.

    Equal texts of an image share one row, so their losses are equal to the last bit.
    """

    def __init__(
        self, backbone: Backbone, plans: Sequence[PromptPlan], device: torch.device
    ) -> None:
        self.backbone, self.plans = backbone, plans
        self.rows = [
            (image, text) for image, plan in enumerate(plans) for text in _distinct(plan.elbo_texts)
        ]
        distinct = _distinct(text for _, text in self.rows)
        place = torch.tensor([distinct.index(text) for _, text in self.rows])
        self.encoded = backbone.encode_text(distinct)[place.to(device)]

    def losses(
        self,
        latents: Tensor,
        images: Sequence[int],
        timesteps: Sequence[NoisedTimesteps],
        batch_size: BatchSize,
        progress: Progress,
    ) -> list[Tensor]:
        """Losses float32 [N, T] of some of the images [B, C, h, w], each at its timesteps."""
        kept = [row for row, (image, _) in enumerate(self.rows) if image in images]
        owners = torch.tensor([images.index(self.rows[row][0]) for row in kept])
        texts = self.encoded[torch.tensor(kept).to(latents.device)]
        chosen = latents[torch.tensor(images).to(latents.device)]
        passes = Passes(chosen, texts, owners, NoisedTimesteps.concatenate(timesteps))
        found = losses(self.backbone, passes, batch_size, progress)
        place = {self.rows[row]: index for index, row in enumerate(kept)}
        return [
            found[[place[image, text] for text in self.plans[image].elbo_texts]] for image in images
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
    texts = _ElboTexts(backbone, plans, latents.device)
    return texts.losses(latents, range(len(plans)), timesteps, batch_size, progress)


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
    found: list[list[Tensor]] = [[] for _ in plans]
    texts = _ElboTexts(backbone, plans, latents.device)
    open_ = list(range(len(plans)))
    for stage in visited:
        here = [timesteps[image].at(stage) for image in open_]
        parts = texts.losses(latents, open_, here, batch_size, progress)
        for image, part in zip(open_, parts, strict=True):
            seen[image] += stage
            found[image].append(part)
        if tolerance is not None:
            open_ = [
                image
                for image in open_
                if expected_change(
                    torch.cat(found[image], 1), weights[image][seen[image]], gamma, centred
                )
                >= tolerance
            ]
        if not open_:
            break
    return [
        _scores(torch.cat(parts, 1), places, weight, noised, gamma)
        for parts, places, weight, noised in zip(found, seen, weights, timesteps, strict=True)
    ]


def _scores(
    losses: Tensor, places: list[int], weights: Tensor, noised: NoisedTimesteps, gamma: float
) -> Scores:
    """Scores of losses [N, T] at some of the timesteps, put into their order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    at = [places[index] for index in order]
    own = losses[:, order]
    bounds = weighted_elbo(own, weights[at] / weights[at].sum())
    return Scores(
        losses=own,
        elbo=bounds.float(),
        scores=alignment_scores(bounds, gamma),
        timesteps=tuple(noised.steps.time[at].tolist()),
    )


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
