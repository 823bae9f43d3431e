"""DAAM (Tang et al., 2023): cross-attention of noised pictures, head by head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pixalign.alignment.collect import AttentionQuery
from pixalign.alignment.heatmaps import to_image
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.attention import Site
from pixalign.attention.sites import chosen_sites
from pixalign.core.values import TokenSpans
from pixalign.methods.baseline import Baseline

# The layers with cells of so many latent positions, 8 x 8 on SD1, are too coarse.
TOO_COARSE = 8


class Daam(Baseline):
    """Down and up blocks of factors below 8, summed over 20 steps evenly in [20, 200].

    Each head's map of each token is enlarged to the latent's size (bicubic), cut off below 0, and
    averaged over all heads of all layers; a class is the mean of its tokens, at every occurrence.
    Then bilinear to the picture and min-max. Resolutions are factors of the latent grid (64 on SD1
    is factor 1); those a model lacks are left out of the mean.
    """

    name = "daam"

    def find(self, task: AlignmentTask) -> MethodOutput:
        texts, spans = self.read_prompts(task)
        tokens, classes = one_by_one(spans)
        sites = attribution_sites(self.backbone.sites)
        collected = self.collected(task, texts, tokens, AttentionQuery(sites, per_head=True))
        total, heads = torch.zeros((), device=texts.embeds.device), 0
        for site in sites:
            maps = collected.cross[site][0]  # [heads, M, h, w]
            large = interpolate(maps, task.latent, mode="bicubic", align_corners=False)
            total = total + large.clamp_min(0).sum(0)
            heads += len(maps)
        cross = _class_means(total / heads, classes, len(task.plan.phrases))
        heatmaps = to_image(task.calibrated(cross), task.size)
        factors = sorted({site.factor for site in sites})
        return MethodOutput(heatmaps, cross, {"cross_factors": factors, "heads": heads})


def attribution_sites(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """The cross-attention layers of the down and up blocks that are not too coarse."""
    fine = {site.factor for site in sites if site.factor < TOO_COARSE}
    fitting = chosen_sites(sites, "cross", mid=False, factors=fine)
    if not fitting:
        raise ValueError(
            "the model has no cross-attention in down or up blocks with cells below "
            f"{TOO_COARSE} latent positions"
        )
    return fitting


def one_by_one(spans: list[TokenSpans]) -> tuple[list[TokenSpans], list[int]]:
    """Spans that number every token of every class, and each token's class [M]."""
    numbered: list[TokenSpans] = []
    classes: list[int] = []
    for span in spans:
        columns = []
        start = len(classes)
        for index, own in zip(span.classes, span.columns, strict=True):
            columns += [(column,) for column in own]
            classes += [index] * len(own)
        numbers = tuple(range(start, len(classes)))
        numbered.append(TokenSpans(span.prompt, numbers, tuple(columns), span.length))
    return numbered, classes


def _class_means(tokens: Tensor, classes: list[int], count: int) -> Tensor:
    """[N, h, w]: the mean of each class's tokens [M, h, w]."""
    return torch.stack(
        [tokens[[token for token, own in enumerate(classes) if own == index]].mean(0)
         for index in range(count)]
    )  # fmt: skip
