"""Collect the attention of a noised image (Algorithm 1, lines 1, 2 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.attention import AttentionReader, Site
from pixalign.backbones import Backbone, TextCondition
from pixalign.batching import BatchSize
from pixalign.progress import Progress
from pixalign.schedule import Steps
from pixalign.types import AttentionMaps, TokenSpans


def collect(
    backbone: Backbone,
    latents: Tensor,
    texts: TextCondition,
    spans: Sequence[TokenSpans],
    steps: Steps,
    noise: Tensor,
    *,
    self_attention: str,
    image_only_attention: bool,
    batch_size: BatchSize,
    progress: Progress,
) -> AttentionMaps:
    """Attention of latents [1, C, h, w] under P prompts at T steps with noise [T, C, h, w].

    Each class stands in one prompt. Cross maps are averaged over heads, a class's columns and
    steps; self-attention over heads, steps, prompts and the layers of highest resolution.
    """
    labels = self_labels(backbone.sites, self_attention, image_only_attention)
    text_sites = tuple(site for site in backbone.sites if site.reads_text)
    class_count = sum(len(span.classes) for span in spans)
    columns = torch.stack([span.averaging_matrix(class_count) for span in spans])
    columns = columns.to(latents.device)  # [P, L, N]
    noised = steps.noised(latents, noise)
    count, total = len(steps), len(texts) * len(steps)

    done = 0

    def work(size: int) -> tuple[AttentionReader, dict[Site, Tensor]]:
        nonlocal done
        progress.advance(-done)  # sums cannot be resumed: after a failure they start anew
        done = 0
        reader = AttentionReader(backbone.sites, labels)
        sums: dict[Site, Tensor] = {}
        with reader.attached(backbone.denoiser):
            for first in range(0, total, size):
                pairs = torch.arange(first, min(first + size, total))
                text, step = (pairs // count).to(latents.device), pairs % count
                reader.columns = columns[text]
                backbone.predict(noised[step.to(latents.device)], steps[step], texts[text])
                for site, maps in reader.cross.items():
                    sums[site] = sums.get(site, 0) + maps.sum(0)
                progress.advance(len(pairs))
                done += len(pairs)
        return reader, sums

    reader, sums = batch_size.attempt(latents, total, "collect", work)
    height, width = latents.shape[-2:]
    grid_site = next(iter(labels), text_sites[0])
    return AttentionMaps(
        cross=tuple(sums[site] / count for site in text_sites),
        factors=tuple(site.factor for site in text_sites),
        middle=middle_index(text_sites),
        self_attention=_matrices(reader, self_attention),
        grid=grid_site.grid((height, width)),
    )


def self_labels(
    sites: Sequence[Site], self_attention: str, image_only_attention: bool
) -> dict[Site, str]:
    """The running sum each self-attention layer of highest resolution belongs to.

    SD3.5's image-only layers stand beside joint ones and take part only when asked for.
    """
    if self_attention == "none":
        return {}
    joint = any(site.kind == "joint" for site in sites)
    candidates = [
        site
        for site in sites
        if site.reads_image and (site.kind == "joint" or not joint or image_only_attention)
    ]
    if not candidates:
        raise ValueError("this model has no self-attention; use self_attention='none'")
    highest = min(site.factor for site in candidates)
    by_place = self_attention == "up-after-all"
    return {
        site: site.place if by_place else "all" for site in candidates if site.factor == highest
    }


def _matrices(reader: AttentionReader, self_attention: str) -> tuple[Tensor, ...]:
    """The matrices S1, S2 ... in the order in which they are applied."""
    if self_attention == "none":
        return ()
    everything = reader.self_mean(*reader.self_sums)
    if self_attention == "once":
        return (everything,)
    if self_attention == "twice":
        return (everything, everything)
    if "up" not in reader.self_sums:
        raise ValueError("self_attention='up-after-all' needs a UNet; use 'twice' on this model")
    return everything, reader.self_mean("up")


def middle_index(text_sites: Sequence[Site]) -> float:
    """The index of the middle text layer: the mid block's, or the middle of the list."""
    middle = [index for index, site in enumerate(text_sites) if site.place == "mid"]
    return sum(middle) / len(middle) if middle else (len(text_sites) - 1) / 2
