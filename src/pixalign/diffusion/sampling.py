"""One sampling loop, from noise to pictures and back, deterministic and for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pixalign.core.batching import BatchSize
from pixalign.core.checks import check_finite, check_seed
from pixalign.core.progress import Progress
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import SamplingPath

# (index of the step, latents [B, C, h, w]) to latents, or to an output of the network.
StepFunction = Callable[[int, Tensor], Tensor]


class Sampler:
    """Deterministic sampling of B pictures under prompts [B], from noise in T steps, and back.

    The network is a `pixalign.backbones.Backbone`, here and below. ``unconditional`` gives the
    embeddings [B, L, D] that guidance leads away from at a step, None the model's own.
    Without a ``batch_size`` all rows go in one pass, come what may. ``latent`` is the latents'
    (height, width), by default the native one.
    """

    def __init__(
        self,
        network: Any,
        prompts: Sequence[str],
        steps: int,
        guidance: float = 1.0,
        batch_size: BatchSize | None = None,
        latent: Size | None = None,
    ) -> None:
        self.network, self.batch_size = network, batch_size
        self.texts: TextCondition = network.told(network.encode_text(prompts), guidance)
        self.empty: TextCondition = network.told(network.unconditional(), guidance)
        self.guidance = 1.0 if network.tells_guidance else guidance
        where = latent or network.latent_shape(network.native_size)[1:]
        self.path: SamplingPath = network.path(steps, where)
        self.unconditional: Callable[[int], Tensor] | None = None

    def run(
        self,
        z: Tensor,
        output: StepFunction | None = None,
        *,
        before: StepFunction | None = None,
        after: StepFunction | None = None,
        backwards: bool = False,
        bar: Progress | None = None,
    ) -> Tensor:
        """Latents [B, C, h, w] at the end of the path from noise z; backwards, at its start.

        ``output`` is by default the guided one. ``before`` and ``after`` may change the latents
        with which a step begins and ends.
        """
        indices = range(len(self.path))
        for index in reversed(indices) if backwards else indices:
            z = z if before is None else before(index, z)
            said = (output or self.guided)(index, z)
            z = self.path.advance(self.network.objective, said, z, index, backwards=backwards)
            z = z if after is None else after(index, z)
            if bar is not None:
                bar.advance(len(z))
        return z

    def guided(self, index: int, z: Tensor) -> Tensor:
        """The guided output for latents z [B, C, h, w]: both texts in one batch."""
        embeds = None if self.unconditional is None else self.unconditional(index)
        both = TextCondition.concatenate([self.nothing(len(z), embeds), self.texts])
        away, towards = self.output(index, torch.cat([z, z]), both).chunk(2)
        return guided(towards, away, self.guidance)

    def nothing(self, count: int, embeds: Tensor | None = None) -> TextCondition:
        """The empty text ``count`` times; embeddings [count, L, D] take the place of its own."""
        rows = self.empty.repeated(count)
        return rows if embeds is None else replace(rows, embeds=embeds.to(rows.embeds))

    def output(self, index: int, z: Tensor, texts: TextCondition) -> Tensor:
        """The network's own output, float32 as z [n, C, h, w], under texts [n] at a step.

        In one pass or as few as memory allows.
        """
        network, steps = self.network, self.path.at(index, len(z))
        made = torch.empty_like(z, dtype=torch.float32)

        def work(first: int, last: int) -> None:
            rows = torch.arange(first, last)
            there = rows.to(z.device)
            made[there] = network.predict(z[there], steps[rows], texts[there])

        if self.batch_size is None:
            work(0, len(z))
        else:
            self.batch_size.each(z, len(z), "sample", work)
        check_finite(made, f"outputs of the {network.family} network", network.dtype)
        return made


def guided(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance; 1 is the conditional output itself."""
    return unconditional + guidance * (conditional - unconditional)


def initial_noise(network: Any, seeds: Sequence[int], size: Size) -> Tensor:
    """float32 [B, C, h, w] for pictures of (height, width); each depends on its seed alone."""
    for seed in seeds:
        check_seed(seed)
    shape = network.latent_shape(size)
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(drawn).to(network.device)


def picture_size(network: Any, size: Size | None) -> Size:
    """The (height, width) of pictures to draw: those given, or the native ones."""
    if size is None:
        native: Size = network.native_size
        return native
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
