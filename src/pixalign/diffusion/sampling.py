"""From noise to pictures, deterministically and for every family: noise, passes, guidance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.schedule import Steps


def initial_noise(backbone: Backbone, seeds: Sequence[int], size: Size) -> Tensor:
    """float32 [B, C, h, w] for pictures of (height, width); each depends on its seed alone."""
    channels = int(backbone.pipe.vae.config.latent_channels)
    shape = (channels, size[0] // backbone.vae_factor, size[1] // backbone.vae_factor)
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(drawn).to(backbone.device)


def picture_size(backbone: Backbone, size: Size | None) -> Size:
    """The (height, width) of pictures to draw: those given, or the native ones."""
    if size is None:
        return backbone.native_size
    multiple, largest = backbone.size_multiple, backbone.largest_side
    if any(side < multiple or side % multiple or side > largest for side in size):
        raise ValueError(
            f"size is {size[0]}x{size[1]}; allowed: multiples of {multiple} up to {largest}"
        )
    return size


def outputs(
    backbone: Backbone, z: Tensor, steps: Steps, text: TextCondition, batch_size: BatchSize
) -> Tensor:
    """The network's output float32 [B, C, h, w], in one batch or as few as memory allows."""
    found = torch.empty_like(z, dtype=torch.float32)
    done = 0

    def work(size: int) -> None:
        nonlocal done
        while done < len(z):
            rows = torch.arange(done, min(done + size, len(z)))
            there = rows.to(z.device)
            found[there] = backbone.predict(z[there], steps[rows], text[there])
            done += len(rows)

    batch_size.attempt(z, len(z), "sample", work)
    return backbone.checked(found)


def guided(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance; 1 is the conditional output itself."""
    return unconditional + guidance * (conditional - unconditional)


def to_pictures(pixels: Tensor) -> list[Image.Image]:
    """RGB pictures of pixels float32 [B, 3, H, W] in [0, 1]."""
    values = (pixels * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(np.ascontiguousarray(one)) for one in values]
