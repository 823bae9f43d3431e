"""Semantic DiffSeg (Tian et al., 2024): segments of self-attention, named by cross-attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import interpolate

from pixalign.alignment.collect import AttentionQuery
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.attention.sites import chosen_sites
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax, resize, widest
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Size
from pixalign.methods.baseline import Baseline
from pixalign.text.prompts import Prompt

ENDING = ", and background"
_WORD = "background"
_TINY = 1e-30  # below any probability that counts, above 0 for its logarithm
_ROWS_AT_ONCE = 1024


class DiffSeg(Baseline):
    """The clean latent at step 300, one pass, under "a photo of c1, c2, and background".

    Self-attention of every resolution (mean over heads and layers) is enlarged to the finest,
    keys bilinearly and queries by repetition, each row brought to sum 1, and averaged with weights
    in proportion to resolution. Rows at a grid of ``anchors`` x ``anchors`` absorb all rows within
    ``threshold`` by symmetric Kullback-Leibler divergence, then each other, in ``iterations``
    rounds; a pixel belongs to the segment with the highest value. Each segment takes the class, or
    background, whose cross-attention (sum over resolutions, brought to L2 norm 1) has the highest
    mean inside: heatmaps are 0 and 1. Scores change the classes' cross maps before that norm, the
    background then counting as a class of score 1. Resolutions are factors of the latent grid
    (1, 2, 4 and 8 on SD1); weights of those a model lacks are shared by the others.
    """

    name = "diffseg"

    def __init__(
        self,
        model: AlignmentModel,
        *,
        timesteps: Sequence[int] = (300,),
        anchors: int = 16,
        threshold: float = 0.9,
        iterations: int = 3,
    ) -> None:
        super().__init__(model, timesteps=timesteps)
        if anchors < 2 or iterations < 1 or not threshold > 0:
            raise ValueError(
                f"anchors, iterations and threshold are {anchors!r}, {iterations!r} and "
                f"{threshold!r}; allowed: from 2, from 1 and above 0"
            )
        self.anchors, self.threshold, self.iterations = anchors, threshold, iterations

    def prompts(
        self, plan: PromptPlan, caption: str | None, config: AlignConfig
    ) -> tuple[Prompt, ...]:
        """Prompts that end with the background, which is numbered after the classes."""
        ending = dataclasses.replace(config, template=config.template + ENDING, calibrate="none")
        longer = None if caption is None else caption + ENDING
        composed = plan_prompts(self.backbone, plan.phrases, longer, ending).prompts
        last = len(plan.phrases)
        return tuple(
            Prompt(
                prompt.text,
                (*prompt.classes, last),
                (*prompt.spans, ((len(prompt.text) - len(_WORD), len(prompt.text)),)),
            )
            for prompt in composed
        )

    def collecting(self, latents: Tensor, generator: torch.Generator) -> NoisedTimesteps:
        """The network is told of noise, but there is none."""
        steps = self.backbone.schedule.at_indices(self.indices)
        clean = dataclasses.replace(
            steps, alpha=torch.ones_like(steps.alpha), sigma=torch.zeros_like(steps.sigma)
        )
        return NoisedTimesteps(clean, latents.new_zeros(len(steps), *latents.shape[1:]))

    def find(self, task: AlignmentTask) -> MethodOutput:
        texts, spans = self.read_prompts(task)
        self_sites = chosen_sites(self.backbone.sites, "self")
        labels = {site: str(site.factor) for site in self_sites}
        query = AttentionQuery(chosen_sites(self.backbone.sites, "cross"), labels)
        collected = self.collected(task, texts, spans, query)
        grids = {site.factor: site.grid(task.latent) for site in self_sites}
        weights = {factor: 1 / factor for factor in sorted(grids)}
        weights = {factor: weight / sum(weights.values()) for factor, weight in weights.items()}
        finest = grids[min(grids)]
        attention = torch.zeros((), device=task.encoded.latents.device)
        for factor, weight in weights.items():
            own = collected.self_attention(str(factor))
            attention = attention + weight * _enlarged(own, grids[factor], finest)
        rows = anchor_rows(finest, self.anchors)
        proposals = merged(attention, rows, self.threshold, self.iterations)
        segments = _strongest(rearrange(proposals, "k (h w) -> k h w", h=finest[0]), task.size)
        cross = {  # [N + 1, h, w]: the mean over the layers of each resolution
            factor: collected.combined(chosen_sites(query.cross, "cross", factors=[factor]))
            for factor in {site.factor for site in query.cross}
        }
        heatmaps = _named(segments, cross, task)
        whole = sum(resize(maps, finest) for maps in cross.values())
        assert isinstance(whole, Tensor)
        record = {"self_weights": weights, "cross_factors": sorted(cross)}
        alone = (
            f"self-attention merged into one segment; a lower threshold than {self.threshold:g} "
            "keeps more apart: options={'threshold': 0.2}, or --option threshold=0.2"
        )
        warnings = (alone,) if len(proposals) == 1 else ()
        return MethodOutput(heatmaps, whole[:-1], {**record, "segments": len(proposals)}, warnings)


def _enlarged(attention: Tensor, grid: Size, size: Size) -> Tensor:
    """[H*W, H*W] of self-attention [h*w, h*w]: keys bilinear, rows to sum 1, queries repeated."""
    keys = resize(rearrange(attention, "q (h w) -> q h w", h=grid[0]), size)
    keys = keys / keys.sum((1, 2), keepdim=True)
    maps = rearrange(keys, "(h w) y x -> (y x) h w", h=grid[0])
    if grid != size:
        maps = interpolate(maps[None], size, mode="nearest-exact")[0]
    return rearrange(maps, "k h w -> (h w) k")


def anchor_rows(grid: Size, count: int) -> list[int]:
    """Rows of the anchors: ``count`` a side at equal whole steps, centred; all if there are fewer.

    On a side of 64 with 16 anchors they are 1, 5, ..., 61.
    """
    sides = []
    for side in grid:
        many = min(count, side)
        step = (side - 1) // max(1, many - 1)
        start = (side - 1 - step * (many - 1)) // 2
        sides.append([start + step * place for place in range(many)])
    return [row * grid[1] + column for row in sides[0] for column in sides[1]]


def merged(attention: Tensor, rows: list[int], threshold: float, iterations: int) -> Tensor:
    """Proposals float64 [K, P] from attention [P, P]: iterative attention merging.

    First every anchor becomes the mean of all rows within the threshold; then, in order, each
    proposal not yet taken becomes the mean of all within the threshold, which are taken.
    """
    wide = widest(attention.device)
    anchors = attention[rows].to(wide)
    close = torch.cat(
        [_divergence(anchors, part.to(wide)) < threshold
         for part in torch.split(attention, _ROWS_AT_ONCE)], 1,
    )  # fmt: skip
    proposals = _mean_of(close, attention.to(wide))
    for _ in range(iterations - 1):
        close = _divergence(proposals, proposals) < threshold
        taken = torch.zeros(len(proposals), dtype=torch.bool, device=close.device)
        kept = []
        for index in range(len(proposals)):
            if not taken[index]:
                kept.append(index)
                taken |= close[index]
        proposals = _mean_of(close[kept], proposals)
    return proposals


def _mean_of(close: Tensor, rows: Tensor) -> Tensor:
    """[K, P]: for each of close bool [K, M] the mean of its rows [M, P]."""
    share = close.to(rows)
    return share @ rows / share.sum(1, keepdim=True)


def _divergence(these: Tensor, those: Tensor) -> Tensor:
    """[A, B]: (KL(p, q) + KL(q, p)) / 2 of distributions [A, P] and [B, P]."""
    first, second = (x.clamp_min(_TINY) for x in (these, those))
    logs = first.log(), second.log()
    own = (first * logs[0]).sum(1)[:, None] + (second * logs[1]).sum(1)[None]
    return (own - first @ logs[1].T - logs[0] @ second.T) / 2


def _strongest(proposals: Tensor, size: Size) -> Tensor:
    """int64 [H, W]: which proposal [K, h, w] is highest at each pixel, bilinearly enlarged."""
    best = torch.full(size, -torch.inf, dtype=proposals.dtype, device=proposals.device)
    chosen = torch.zeros(size, dtype=torch.long, device=proposals.device)
    for number, proposal in enumerate(proposals):  # large pictures: one at a time
        value = resize(proposal[None], size)[0]
        higher = value > best
        chosen[higher], best[higher] = number, value[higher]
    return chosen


def _named(segments: Tensor, cross: dict[int, Tensor], task: AlignmentTask) -> Tensor:
    """Heatmaps float32 [N, H, W] of 0 and 1: each segment's class, if it has one.

    ``cross`` [N + 1, h, w] by factor, the background last.
    """
    count = int(segments.max()) + 1
    flat = segments.flatten()
    pixels = torch.bincount(flat, minlength=count).clamp_min(1)
    means = []
    for index in range(len(task.plan.phrases) + 1):
        enlarged = sum(resize(maps[index, None], task.size) for maps in cross.values())
        assert isinstance(enlarged, Tensor)
        if task.powers is not None:
            background = index == len(task.plan.phrases)
            power = 1.0 if background else float(task.powers[index])
            enlarged = minmax(enlarged, (1, 2)) ** power
        values = enlarged.flatten().to(widest(enlarged.device))
        norm = values.norm().clamp_min(_TINY)
        means.append(torch.bincount(flat, values / norm, count) / pixels)
    label = torch.stack(means).argmax(0)[segments]  # [H, W]
    numbers = torch.arange(len(task.plan.phrases), device=label.device)
    return (label[None] == numbers[:, None, None]).float().cpu()
