"""One sampling loop, from noise to pictures and back, deterministic and for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.protocols import Denoiser
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import SamplingPath, Steps

# (index of the step, latents [B, C, h, w]) to latents, or to an output of the network.
StepFunction = Callable[[int, Tensor], Tensor]


def sample(
    network: Denoiser,
    z: Tensor,
    path: SamplingPath,
    output: StepFunction,
    *,
    before: StepFunction | None = None,
    after: StepFunction | None = None,
    backwards: bool = False,
    bar: Progress | None = None,
) -> Tensor:
    """Latents [B, C, h, w] at the end of the path from noise z; backwards, at its start.

    ``output`` says what the network, guided or not, makes of a step's latents. ``before`` and
    ``after`` may change the latents with which a step begins and ends.
    """
    indices = range(len(path))
    move = path.retreat if backwards else path.advance
    for index in reversed(indices) if backwards else indices:
        z = z if before is None else before(index, z)
        z = move(network.objective, output(index, z), z, index)
        z = z if after is None else after(index, z)
        if bar is not None:
            bar.advance(len(z))
    return z


class GuidedOutput:
    """The guided output for latents [B, C, h, w] under texts [B]: both texts in one batch.

    ``unconditional`` gives the embeddings [B, L, D] that guidance leads away from at a step; None
    stands for the model's own. Without a ``batch_size`` all rows go in one pass, come what may.
    """

    def __init__(
        self,
        network: Denoiser,
        path: SamplingPath,
        texts: TextCondition,
        guidance: float,
        batch_size: BatchSize | None = None,
        unconditional: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.network, self.path, self.texts = network, path, texts
        self.guidance, self.batch_size = guidance, batch_size
        self.empty = network.unconditional()
        self.unconditional = unconditional

    def __call__(self, index: int, z: Tensor) -> Tensor:
        """At step ``index``."""
        embeds = None if self.unconditional is None else self.unconditional(index)
        both = TextCondition.concatenate([repeated(self.empty, len(z), embeds), self.texts])
        steps = self.path.at(index, 2 * len(z))
        away, towards = outputs(
            self.network, torch.cat([z, z]), steps, both, self.batch_size
        ).chunk(2)
        return guided(towards, away, self.guidance)


def guided(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance; 1 is the conditional output itself."""
    return unconditional + guidance * (conditional - unconditional)


def repeated(empty: TextCondition, count: int, embeds: Tensor | None = None) -> TextCondition:
    """The empty text [1] ``count`` times; embeddings [count, L, D] take the place of its own."""
    rows = empty.repeated(count)
    return rows if embeds is None else TextCondition(embeds.to(rows.embeds), rows.pooled)


def outputs(
    network: Denoiser, z: Tensor, steps: Steps, text: TextCondition, batch_size: BatchSize | None
) -> Tensor:
    """The network's output float32 [B, C, h, w], in one pass or as few as memory allows."""
    if batch_size is None:
        return network.checked(network.predict(z, steps, text))
    made = torch.empty_like(z, dtype=torch.float32)

    def work(first: int, last: int) -> None:
        rows = torch.arange(first, last)
        there = rows.to(z.device)
        made[there] = network.predict(z[there], steps[rows], text[there])

    batch_size.each(z, len(z), "sample", work)
    return network.checked(made)


def initial_noise(network: Denoiser, seeds: Sequence[int], size: Size) -> Tensor:
    """float32 [B, C, h, w] for pictures of (height, width); each depends on its seed alone."""
    shape = network.latent_shape(size)
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(drawn).to(network.device)


def picture_size(network: Denoiser, size: Size | None) -> Size:
    """The (height, width) of pictures to draw: those given, or the native ones."""
    if size is None:
        return network.native_size
    multiple, largest = network.size_multiple, network.largest_side
    if any(side < multiple or side % multiple or side > largest for side in size):
        raise ValueError(
            f"size is {size[0]}x{size[1]}; allowed: multiples of {multiple} up to {largest}"
        )
    return size


def to_pictures(pixels: Tensor) -> list[Image.Image]:
    """RGB pictures of pixels float32 [B, 3, H, W] in [0, 1]."""
    values = (pixels * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(np.ascontiguousarray(picture)) for picture in values]
