"""Down the path from noise to pictures, and up again."""

from __future__ import annotations

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import TextCondition
from pixalign.diffusion.sampling import guided, outputs
from pixalign.diffusion.schedule import SamplingPath


def sample(
    backbone: Backbone,
    noise: Tensor,
    texts: TextCondition,
    path: SamplingPath,
    guidance: float,
    unconditional: Tensor | None = None,
    batch_size: BatchSize | None = None,
    bar: Progress | None = None,
) -> Tensor:
    """Latents [B, C, h, w] at the end of the path from noise, under texts [B].

    ``unconditional`` [T, B, L, D] is what guidance leads away from, None the model's own.
    """
    z, limits, bar = noise, batch_size or BatchSize(), bar or quiet()
    empty = backbone.unconditional()
    for index in range(len(path)):
        own = None if unconditional is None else unconditional[index]
        both = TextCondition.concatenate([repeated(empty, len(z), own), texts])
        steps = path.at(index, 2 * len(z))
        away, towards = outputs(backbone, torch.cat([z, z]), steps, both, limits).chunk(2)
        z = path.advance(backbone.objective, guided(towards, away, guidance), z, index)
        bar.advance(len(z))
    return z


def repeated(empty: TextCondition, count: int, embeds: Tensor | None = None) -> TextCondition:
    """The empty text [1] ``count`` times; embeddings [count, L, D] take the place of its own."""
    rows = empty.repeated(count)
    return rows if embeds is None else TextCondition(embeds.to(rows.embeds), rows.pooled)


def quiet() -> Progress:
    """A bar that nobody sees."""
    return Progress(0, "", False)


def invert(
    backbone: Backbone,
    latents: Tensor,
    texts: TextCondition,
    path: SamplingPath,
    batch_size: BatchSize | None = None,
    bar: Progress | None = None,
) -> Tensor:
    """Up the path from pictures' latents [B, C, h, w] under texts [B], without guidance.

    The trajectory float32 [T + 1, B, C, h, w]: [i] is where step i begins, [T] the pictures.
    """
    found, limits, bar = [latents], batch_size or BatchSize(), bar or quiet()
    for index in reversed(range(len(path))):
        z = found[-1]
        output = outputs(backbone, z, path.at(index, len(z)), texts, limits)
        found.append(path.retreat(backbone.objective, output, z, index))
        bar.advance(len(z))
    return torch.stack(found[::-1])
