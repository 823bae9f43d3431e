"""Collect the attention of noised images (Algorithm 1, lines 1, 2 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pixalign.alignment.plan import Passes
from pixalign.attention import AttentionReader, Site, add_by_owner, text_layers
from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.progress import Progress
from pixalign.core.values import AttentionMaps, TokenSpans

# Self-attention of the images that are collected together, in elements: 1 GiB of float32.
_SELF_BUDGET = 2**28
_MOST_IMAGES = 64


def collect(
    backbone: Backbone,
    passes: Passes,
    spans: Sequence[TokenSpans],
    *,
    self_attention: str,
    image_only_attention: bool,
    batch_size: BatchSize,
    progress: Progress,
) -> list[AttentionMaps]:
    """Each image's attention, from passes over prompts with the columns of its classes.

    Each class stands in one prompt of its image. Cross maps are averaged over heads, a class's
    columns and steps; self-attention over heads, steps, prompts and the layers of highest
    resolution.
    """
    labels = self_labels(backbone.sites, self_attention, image_only_attention)
    text_sites = tuple(site for site in backbone.sites if site.reads_text)
    images, device = len(passes.latents), passes.latents.device
    classes = [0] * images
    for span, owner in zip(spans, passes.owners.tolist(), strict=True):
        classes[owner] += len(span.classes)
    columns = torch.stack([span.averaging_matrix(max(classes)) for span in spans])
    columns = columns.to(device)  # [P, L, N]
    done = 0

    def work(size: int) -> tuple[AttentionReader, dict[Site, Tensor]]:
        nonlocal done
        progress.advance(-done)  # sums cannot be resumed: after a failure they start anew
        done = 0
        reader = AttentionReader(backbone.sites, labels, images)
        sums: dict[Site, Tensor] = {}
        with reader.attached(backbone.denoiser):
            while done < len(passes):
                part = passes.batch(done, min(done + size, len(passes)))
                reader.columns, reader.owners = columns[part.text.to(device)], part.image
                backbone.predict(part.z, part.steps, part.texts)
                for site, maps in reader.cross.items():
                    if site not in sums:
                        sums[site] = maps.new_zeros(images, *maps.shape[1:])
                    add_by_owner(sums[site], maps, part.image)
                progress.advance(len(part.z))
                done += len(part.z)
        return reader, sums

    reader, sums = batch_size.attempt(passes.latents, len(passes), "collect", work)
    height, width = passes.latents.shape[-2:]
    grid_site = next(iter(labels), text_sites[0])
    layers = text_layers(backbone.sites)
    return [
        AttentionMaps(
            cross=tuple(sums[site][image, :count] / passes.steps_each for site in text_sites),
            layers=layers,
            self_attention=_matrices(reader, self_attention, image),
            grid=grid_site.grid((height, width)),
        )
        for image, count in enumerate(classes)
    ]


def images_at_once(backbone: Backbone, latents: Tensor, self_attention: str) -> int:
    """How many images like latents [1, C, h, w] are collected together: at least one."""
    labels = self_labels(backbone.sites, self_attention, False)
    height, width = latents.shape[-2:]
    grids = {label: site.grid((height, width)) for site, label in labels.items()}
    held = sum((rows * columns) ** 2 for rows, columns in grids.values())
    return min(_MOST_IMAGES, max(1, _SELF_BUDGET // max(held, 1)))


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


def _matrices(reader: AttentionReader, self_attention: str, image: int) -> tuple[Tensor, ...]:
    """An image's matrices S1, S2 ... in the order in which they are applied."""
    if self_attention == "none":
        return ()
    everything = reader.self_mean(*reader.self_sums, image=image)
    if self_attention == "once":
        return (everything,)
    if self_attention == "twice":
        return (everything, everything)
    if "up" not in reader.self_sums:
        raise ValueError("self_attention='up-after-all' needs a UNet; use 'twice' on this model")
    return everything, reader.self_mean("up", image=image)
