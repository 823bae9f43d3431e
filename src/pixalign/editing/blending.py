"""What the edit is not about stays as it is in the source (Prompt-to-Prompt's local blend)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d

from pixalign.attention import AttentionReader, Site, text_layers
from pixalign.attention.layers import combine_layers
from pixalign.backbones import Backbone
from pixalign.core.maps import resize
from pixalign.core.values import Size

_CELLS = 16 * 16  # of the layers that are read: those of the published method


class LocalBlend:
    """Masks of n pairs from the attention to some words, over all steps so far.

    The layers are those nearest to 16 x 16 cells. A pair's mask is where the attention to the
    source's words or that to the target's, each relative to its maximum, is above a threshold.
    """

    def __init__(
        self,
        backbone: Backbone,
        columns: Sequence[tuple[Sequence[int], Sequence[int]] | None],
        length: int,
        latent: Size,
        threshold: float,
    ) -> None:
        """``columns`` are both sides' words; a pair without any is edited everywhere."""
        self.latent, self.threshold = latent, threshold
        self.sites = blend_sites(backbone.sites, latent)
        self.reader = AttentionReader(self.sites)
        count = len(columns)
        matrices = torch.zeros(2 * count, length, 1)
        for row, sides in enumerate(columns):
            for place, side in enumerate(sides or ()):
                matrices[row + place * count, list(side)] = 1 / len(side)
        self.everywhere = torch.tensor([sides is None for sides in columns]).to(backbone.device)
        self.reader.columns = matrices.to(backbone.device)
        # The conditional half of a batch [sources, targets, sources, targets].
        self.reader.rows = slice(2 * count, None)
        self.total: Tensor | None = None  # [2n, 1, h, w]

    @contextmanager
    def attached(self, backbone: Backbone) -> Iterator[None]:
        """Read every pass inside the block."""
        with self.reader.attached(backbone.denoiser):
            yield

    def add(self) -> None:
        """Count the last pass in."""
        cross = [self.reader.cross[site] for site in self.sites]
        maps = combine_layers(cross, text_layers(self.sites), "uniform")
        self.total = maps if self.total is None else self.total + maps

    def mask(self) -> Tensor:
        """bool [n, 1, h, w] on the latent's grid."""
        assert self.total is not None, "nothing was read yet"
        wide = resize(max_pool2d(self.total, 3, stride=1, padding=1), self.latent)
        peaks = wide.amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny)
        source, target = (wide / peaks > self.threshold).chunk(2)
        return source | target | self.everywhere[:, None, None, None]


def blend_sites(sites: Sequence[Site], latent: Size) -> tuple[Site, ...]:
    """The text-reading layers of the resolution that is nearest to 16 x 16 cells."""
    reading = [site for site in sites if site.reads_text]

    def distance(factor: int) -> float:
        grid = next(site for site in reading if site.factor == factor).grid(latent)
        return abs(math.log(grid[0] * grid[1] / _CELLS))

    nearest = min(sorted({site.factor for site in reading}), key=distance)
    return tuple(site for site in reading if site.factor == nearest)


def region(where: tuple[Tensor, float] | None, latent: Size) -> Tensor:
    """bool [1, h, w]: latent positions where one of the heatmaps [n, H, W] reaches a threshold.

    Without heatmaps, everywhere.
    """
    if where is None:
        return torch.ones(1, *latent, dtype=torch.bool)
    heatmaps, threshold = where
    cells = interpolate(heatmaps[None], latent, mode="area")[0]
    return (cells >= threshold).any(0, keepdim=True)
