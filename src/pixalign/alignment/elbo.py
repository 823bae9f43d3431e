"""The diffusion loss of images under texts: how well the model knows them (Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from pixalign.alignment.plan import Passes
from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress


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
