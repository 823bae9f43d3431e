"""The diffusion loss of images under texts: how well the model knows them (Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.batching import BatchSize
from pixalign.plan import Passes
from pixalign.progress import Progress


def losses(backbone: Backbone, passes: Passes, batch_size: BatchSize, progress: Progress) -> Tensor:
    """Mean squared epsilon-error of each of P texts at its image's T steps.

    The noise is shared by all texts of an image, so that differences between them are due to
    the text alone. All passes go through the network in batches, with its own fused attention.
    Returns float32 [P, T] on the CPU: unweighted, without the factor 1/2.
    """
    errors = torch.empty(len(passes), device=passes.latents.device)
    done = 0

    def work(size: int) -> None:
        nonlocal done
        while done < len(passes):
            part = passes.batch(done, done + size)
            estimate = backbone.epsilon(part.z, part.steps, part.texts)
            last = done + len(part.z)
            errors[done:last] = (estimate - part.noise).square().mean(dim=(1, 2, 3))
            progress.advance(last - done)
            done = last

    batch_size.attempt(passes.latents, len(passes), "elbo", work)
    return errors.reshape(-1, passes.steps_each).cpu()
