"""What the edit is not about stays as it is in the source (Prompt-to-Prompt's local blend)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d

from pixalign.attention import AttentionReader, text_layers
from pixalign.attention.layers import combine_layers
from pixalign.attention.sites import grid_factor
from pixalign.backbones import Backbone
from pixalign.core.maps import resize
from pixalign.core.values import Size
from pixalign.editing.plan import EditPlan, EditSettings


@contextmanager
def masks_of(
    backbone: Backbone, plans: Sequence[EditPlan], settings: EditSettings, latent: Size
) -> Iterator[Callable[[], Tensor] | None]:
    """What, asked after each pass in the block, says where n targets may differ from sources.

    It gives masks bool [n, 1, h, w] on the latents' grid; None is everywhere.
    """
    if settings.blend == "attention" and any(plan.blend_columns for plan in plans):
        masks = AttentionMasks(backbone, plans, latent, settings.blend_threshold)
        with masks.reader.attached(backbone):
            yield masks
    elif settings.blend == "heatmap" and any(plan.heatmaps is not None for plan in plans):
        fixed = torch.stack([heatmap_mask(plan, latent) for plan in plans]).to(backbone.device)
        yield lambda: fixed
    else:
        yield None


class AttentionMasks:
    """Masks from the attention to some words, over all passes so far.

    The layers are those nearest to 16 x 16 cells. A pair's mask is where the attention to the
    source's words or that to the target's, each relative to its maximum, is above a threshold; a
    plan without words for the blend is edited everywhere.
    """

    def __init__(
        self, backbone: Backbone, plans: Sequence[EditPlan], latent: Size, threshold: float
    ) -> None:
        self.latent, self.threshold, device = latent, threshold, backbone.device
        reading = [site for site in backbone.sites if site.reads_text]
        factor = grid_factor(reading, latent)
        self.sites = tuple(site for site in reading if site.factor == factor)
        self.reader = AttentionReader(self.sites)
        count, length = len(plans), len(plans[0].pairing.matrix)
        matrices = torch.zeros(2 * count, length, 1)
        for row, plan in enumerate(plans):
            for side, columns in enumerate(plan.blend_columns or ()):
                matrices[row + side * count, list(columns)] = 1 / len(columns)
        self.reader.columns = matrices.to(device)
        # The conditional half of a batch [sources, targets, sources, targets].
        self.reader.rows = slice(2 * count, None)
        self.everywhere = torch.tensor([p.blend_columns is None for p in plans], device=device)
        self.total: Tensor | None = None  # [2n, 1, h, w]

    def __call__(self) -> Tensor:
        """Count the last pass in."""
        cross = [self.reader.cross[site] for site in self.sites]
        maps = combine_layers(cross, text_layers(self.sites), "uniform")
        self.total = maps if self.total is None else self.total + maps
        wide = resize(max_pool2d(self.total, 3, stride=1, padding=1), self.latent)
        peaks = wide.amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny)
        source, target = (wide / peaks > self.threshold).chunk(2)
        return source | target | self.everywhere[:, None, None, None]


def heatmap_mask(plan: EditPlan, latent: Size) -> Tensor:
    """bool [1, h, w]: latent positions where one of the plan's heatmaps reaches its threshold.

    Without heatmaps, everywhere.
    """
    if plan.heatmaps is None:
        return torch.ones(1, *latent, dtype=torch.bool)
    cells = interpolate(plan.heatmaps[None], latent, mode="area")[0]
    return (cells >= plan.threshold).any(0, keepdim=True)
