"""The diffusion loss of an image under each text: how well the model knows it (Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from pixalign.backbones import Backbone, TextCondition
from pixalign.batching import BatchSize
from pixalign.progress import Progress
from pixalign.schedule import Steps


def losses(
    backbone: Backbone,
    latents: Tensor,
    texts: TextCondition,
    steps: Steps,
    noise: Tensor,
    batch_size: BatchSize,
    progress: Progress,
) -> Tensor:
    """Mean squared epsilon-error of latents [1, C, h, w] for N texts at T steps.

    ``noise`` [T, C, h, w] is shared by all texts, so that differences between them are due to
    the text alone. All (text, step) pairs go through the network in batches, with its own fused
    attention. Returns float32 [N, T] on the CPU: unweighted, without the factor 1/2.
    """
    count, total = len(steps), len(texts) * len(steps)
    noised = steps.noised(latents, noise)
    errors = torch.empty(total, device=latents.device)
    done = 0

    def work(size: int) -> None:
        nonlocal done
        while done < total:
            pairs = torch.arange(done, min(done + size, total))
            text, step = pairs // count, pairs % count
            place = step.to(latents.device)
            estimate = backbone.epsilon(noised[place], steps[step], texts[text.to(latents.device)])
            errors[pairs] = (estimate - noise[place]).square().mean(dim=(1, 2, 3))
            done += len(pairs)
            progress.advance(len(pairs))

    batch_size.attempt(latents, total, "elbo", work)
    return errors.reshape(len(texts), count).cpu()
