"""DiffPNG (Yang et al., 2024), its LSP module: cross-attention finds anchors, they attend."""

from __future__ import annotations

from einops import rearrange

from pixalign.alignment.collect import AttentionQuery
from pixalign.alignment.heatmaps import to_image
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.attention.sites import chosen_sites, nearest_factor
from pixalign.core.maps import minmax, resize, widest
from pixalign.methods.baseline import Baseline

ANCHORS_ABOVE = 0.4
CROSS_FACTOR, SELF_FACTOR = 4, 2  # of the latent grid: 16 x 16 and 32 x 32 on SD1


class DiffPng(Baseline):
    """20 steps evenly in [20, 200], down and up blocks: cross-attention of factor 4, self of 2.

    The mean cross map, enlarged to the self-attention's grid (bilinear) and brought to [0, 1], has
    its anchors where it exceeds 0.4; the heatmap is the sum of the anchors' rows of the mean
    self-attention, bilinear to the picture, min-max. Scores change the map that anchors are found
    in. A model without these factors of the latent grid takes its nearest.
    """

    name = "diffpng"

    def find(self, task: AlignmentTask) -> MethodOutput:
        sites = self.backbone.sites
        factors = [
            nearest_factor(chosen_sites(sites, kind, mid=False), factor)
            for kind, factor in (("cross", CROSS_FACTOR), ("self", SELF_FACTOR))
        ]
        cross_sites, self_sites = (
            chosen_sites(sites, kind, mid=False, factors=[factor])
            for kind, factor in zip(("cross", "self"), factors, strict=True)
        )
        texts, spans = self.read_prompts(task)
        query = AttentionQuery(cross_sites, dict.fromkeys(self_sites, "all"))
        collected = self.collected(task, texts, spans, query)
        grid = self_sites[0].grid(task.latent)
        cross = resize(collected.combined(cross_sites), grid)
        anchors = minmax(task.calibrated(cross), (1, 2)) > ANCHORS_ABOVE
        attention = collected.self_attention("all")
        attention = attention.to(widest(attention.device))
        chosen = rearrange(anchors, "n h w -> n (h w)").to(attention)
        enhanced = rearrange(chosen @ attention, "n (h w) -> n h w", h=grid[0])
        heatmaps = to_image(enhanced, task.size)
        record = {"cross_factors": factors[:1], "self_factors": factors[1:]}
        return MethodOutput(heatmaps, cross, {**record, "anchors": anchors.sum((1, 2)).tolist()})
