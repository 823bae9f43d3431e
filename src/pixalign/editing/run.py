"""`Model.edit`: a picture changed by changing words of its prompt."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pixalign.attention.writing import AttentionWriter
from pixalign.backbones import Backbone
from pixalign.core.maps import resize
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.core.values import Size
from pixalign.diffusion.sampling import Sampler, to_pictures
from pixalign.diffusion.schedule import check_count
from pixalign.editing.blending import masks_of
from pixalign.editing.cache import InversionCache
from pixalign.editing.inversion import InversionSettings, reconstruction_figures
from pixalign.editing.methods import HeatmapInjection, PromptToPrompt
from pixalign.editing.plan import EDITING_METHODS, EditPlan, EditSettings, plan_edits, read_requests
from pixalign.editing.result import Edit
from pixalign.pictures.reading import to_pixels

_ROWS = 4  # of a batch for each pair: source and target, without and with their texts


def edit(
    model: AlignmentModel,
    image: Any,
    source: str | Sequence[str],
    target: str | Sequence[str],
    *,
    method: str = "elbo",
    inversion: str | InversionSettings = "null-text",
    seed: int | Sequence[int] = 0,
    steps: int = 50,
    guidance: float | None = None,
    cross_replace: float = 0.8,
    self_replace: float = 0.4,
    blend: str | None = "attention",
    blend_words: Any = None,
    weights: Mapping[str, float] | Sequence[Mapping[str, float] | None] | None = None,
    entities: Sequence[str] | Sequence[Sequence[str]] | None = None,
    cache: bool | str | os.PathLike[str] | InversionCache | None = None,
    size: Size | None = None,
) -> Any:
    """Change a picture that the source prompt describes into what the target prompt says.

    Gives an `Edit`. Lists of images, sources, targets or seeds give a list, and anything that is
    not a list applies to all. Each edit is what it would be alone, up to rounding. Without an image
    (None), the model first draws one from ``seed``.

    ``method`` says where new words attend: "ptp" where the words that they replace attend; "elbo",
    "dense" and "diffsegmenter" where that method's heatmap finds those words. ``entities`` of the
    source prompt take part in its calibration. ``inversion`` finds the picture's noise, by
    "null-text" or "ddim"; ``cache`` keeps it in a folder, or with True in your cache folder, of at
    most 2 GiB. ``weights`` are factors of target words, ``blend_words`` a pair (source words,
    target words); `EditSettings` describes the others. ``size`` (height, width) is the size at
    which the model works, by default its own area in the picture's shape; a given picture comes
    back at its own size.
    """
    requests, many = read_requests(image, source, target, seed, entities, weights, blend_words)
    backbone: Backbone = model.backbone
    guidance = backbone.guidance if guidance is None else guidance
    settings = EditSettings(method, steps, guidance, cross_replace, self_replace, blend=blend)
    how = InversionSettings(inversion) if isinstance(inversion, str) else inversion
    how = dataclasses.replace(how, steps=steps, guidance=guidance)
    kept = InversionCache.of(cache)
    check_count(steps, backbone.schedule.length)
    record = {
        "settings": dataclasses.asdict(settings),
        "model": model.record(),
        "versions": versions(),
        "inversion": dataclasses.asdict(how),
        "cache": None if kept is None else str(kept.folder),
    }
    by_size: dict[Size, list[int]] = {}
    for row, request in enumerate(requests):
        by_size.setdefault(request.size(backbone, size), []).append(row)
    edits: dict[int, Edit] = {}
    try:
        for where, rows in by_size.items():
            plans = plan_edits(model, [requests[row] for row in rows], settings, how, kept, where)
            pixels = [backbone.decode_latents(z) for z in draw_plans(model, plans, settings)]
            for row, plan, *made in zip(rows, plans, *pixels, strict=True):
                edits[row] = _result(backbone, plan, torch.stack(made), record)
    finally:
        backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
    ordered = [edits[row] for row in range(len(requests))]
    return ordered if many else ordered[0]


def draw_plans(model: AlignmentModel, plans: Sequence[EditPlan], settings: EditSettings) -> Tensor:
    """Latents [2, B, C, h, w] of all sources and of all targets, in batches of whole pairs."""
    shape = (2, len(plans), *plans[0].noise.shape[1:])
    ends = torch.empty(shape, device=model.backbone.device)
    bar = Progress(len(plans) * settings.steps, "edit", model.progress, "step")

    def work(first: int, last: int) -> None:
        def ended(index: int) -> None:  # of a batch that may have failed before
            bar.reach(first * settings.steps + (last - first) * (index + 1))

        ends[:, first:last] = _drawn(model.backbone, plans[first:last], settings, ended)

    with bar:
        model.batch_size.each(plans[0].noise, len(plans), "edit", work, rows=_ROWS)
    return ends


def _drawn(
    backbone: Backbone,
    plans: Sequence[EditPlan],
    settings: EditSettings,
    ended: Callable[[int], None],
) -> Tensor:
    """Latents [2, n, C, h, w] of n sources and targets, drawn in one batch from the same noise.

    The batch is [sources, targets] without their texts, then with them; sources write into targets.
    """
    count, device = len(plans), backbone.device
    noise = torch.cat([plan.noise for plan in plans]).to(device)
    prompts = [plan.pairing.source for plan in plans] + [plan.pairing.target for plan in plans]
    latent = (noise.shape[-2], noise.shape[-1])
    sampler = Sampler(backbone, prompts, settings.steps, settings.guidance, latent=latent)
    usual = sampler.empty.embeds[0].float()
    writer = AttentionWriter(backbone.sites)
    rows = [row for row, plan in enumerate(plans) if plan.pairing.differs]
    writer.sources = torch.tensor(rows, dtype=torch.long, device=device) + 2 * count
    writer.targets = writer.sources + count
    text_edit = _text_edit([plans[row] for row in rows], settings, device)
    coarse = frozenset(site for site in backbone.sites if site.factor >= settings.self_factor)

    def unconditional(index: int) -> Tensor:
        own = [
            usual if p.unconditional is None else p.unconditional[index].to(usual) for p in plans
        ]
        return torch.stack([*own, *own])

    def before(index: int, z: Tensor) -> Tensor:
        writer.replaced = coarse if settings.within(index, settings.self_replace) else frozenset()
        writer.edit = text_edit if settings.within(index, settings.cross_replace) else None
        return z

    def after(index: int, z: Tensor) -> Tensor:
        ended(index)
        mask = None if masks is None else masks()
        if mask is None or settings.within(index, settings.blend_start):
            return z
        source, target = z.chunk(2)
        return torch.cat([source, torch.where(mask, target, source)])

    sampler.unconditional = unconditional
    blending = masks_of(backbone, plans, settings, latent)
    with writer.attached(backbone), blending as masks:
        z = sampler.run(torch.cat([noise, noise]), before=before, after=after)
    return torch.stack(z.chunk(2))


def _text_edit(
    plans: Sequence[EditPlan], settings: EditSettings, device: torch.device
) -> PromptToPrompt | None:
    """What is written for the pairs that differ."""
    pairings = [plan.pairing for plan in plans]
    if EDITING_METHODS[settings.method] and any(plan.heatmaps is not None for plan in plans):
        return HeatmapInjection(pairings, [plan.heatmaps for plan in plans], device)
    return PromptToPrompt(pairings, device) if plans else None


def _result(backbone: Backbone, plan: EditPlan, pixels: Tensor, record: Mapping[str, Any]) -> Edit:
    """Reconstruction and edited picture, pixels [2, 3, H, W], and how they came about.

    Figures are of these pixels; pictures and heatmaps have the size of the one that was given.
    """
    request, pairing, alignment = plan.request, plan.pairing, plan.alignment
    reconstruction, edited = to_pictures(pixels)
    figures, scores, heatmaps = {}, None, plan.heatmaps
    if plan.picture is None:
        record = {**record, "inversion": None, "cache": None}
    else:
        given = to_pixels(plan.picture, (plan.picture.height, plan.picture.width))
        (figures,) = reconstruction_figures(backbone, given, pixels[:1])
    own = request.picture or reconstruction
    if own.size != edited.size:
        reconstruction, edited = (
            made.resize(own.size, Image.Resampling.LANCZOS) for made in (reconstruction, edited)
        )
    if heatmaps is not None:
        heatmaps = resize(heatmaps, (own.height, own.width))
    if alignment is not None:
        scores = dict(zip(alignment.classes, alignment.scores.tolist(), strict=True))
    return Edit(
        source=own,
        reconstruction=reconstruction,
        edited=edited,
        source_prompt=pairing.source,
        target_prompt=pairing.target,
        method=record["settings"]["method"],
        changes=tuple((change.source, change.target) for change in pairing.changes),
        heatmaps=None if heatmaps is None else heatmaps.numpy(),
        figures=figures,
        warnings=() if alignment is None else alignment.warnings,
        provenance={
            "source": request.file,
            "seed": None if plan.picture else request.seed,
            "weights": dict(request.weights or {}),
            "entities": list(request.entities),
            "scores": scores,
            **record,
        },
    )
