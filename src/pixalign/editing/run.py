"""`pixalign.edit`: a picture changed by changing words of its prompt."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel as Aligner
from pixalign.core.provenance import versions
from pixalign.core.values import Size
from pixalign.diffusion.sampling import picture_size, to_pictures
from pixalign.editing.drawing import EditSettings, draw_pairs
from pixalign.editing.inversion import InversionSettings, distances
from pixalign.editing.preparing import Seen, Start, Task, begin, finder, look, to_pair
from pixalign.editing.result import Edit
from pixalign.pictures.reading import ImageLike, model_size, read_image, to_pixels


def edit(
    model: Any,
    image: ImageLike | None,
    source: str,
    target: str,
    *,
    method: str = "elbo",
    inversion: str = "null-text",
    seed: int = 0,
    steps: int = 50,
    guidance: float | None = None,
    cross_replace: float = 0.8,
    self_replace: float = 0.4,
    blend: str | None = "attention",
    blend_words: tuple[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    entities: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = "auto",
    size: Size | None = None,
) -> Edit:
    """Change a picture that the source prompt describes into what the target prompt says.

    Without an image, the one that the model draws from ``seed``. ``model`` is a hub id, a folder,
    "lab:NAME", a loaded pipeline, an `Aligner`, or None for the embedded model. ``method`` says
    where new words attend: "ptp" where the words they replace do, "elbo" and "diffsegmenter" where
    that method's heatmap of these says; ``entities`` of the source prompt take part in its
    calibration. ``inversion`` finds the picture's noise, by "null-text" or "ddim"; it is kept in
    the folder ``cache`` ("auto" is the user's cache, None keeps nothing). ``weights`` are factors
    of target words. For the others see `EditSettings` and `Task`. ``size`` (height, width) is by
    default the model's own area in the picture's shape.
    """
    if isinstance(entities, str):
        raise ValueError(f"entities is {entities!r}; give a list, such as ['dog', 'red car']")
    # What needs no model is checked before one is loaded.
    how = InversionSettings(inversion, steps)
    settings = EditSettings(
        method=method,
        steps=steps,
        cross_replace=cross_replace,
        self_replace=self_replace,
        blend=blend,
    )
    picture = None if image is None else read_image(image)
    aligner = model
    backbone = aligner.backbone
    settings = dataclasses.replace(
        settings, guidance=backbone.guidance if guidance is None else guidance
    )
    if picture is not None and size is None:
        shape = (picture.height, picture.width)
        size = model_size(
            shape, "keep", backbone.native_size, backbone.size_multiple, backbone.largest_side
        )
    task = Task(source, target, picture, seed, tuple(entities or ()), weights, blend_words)
    done = edit_many([task], aligner, settings, inversion=how.method, cache=cache, size=size)[0]
    name = os.fspath(image) if isinstance(image, str | os.PathLike) else None
    return dataclasses.replace(done, provenance={"source": name, **done.provenance})


def edit_many(
    tasks: Sequence[Task],
    aligner: Aligner,
    settings: EditSettings,
    *,
    inversion: str | InversionSettings = "null-text",
    cache: str | os.PathLike[str] | None = "auto",
    size: Size | None = None,
) -> list[Edit]:
    """Edit several pictures of one size, by default the model's own, in batches.

    Each edit is what it would be alone, up to rounding. ``inversion`` is a method's name, or its
    settings, which must have the edit's steps and guidance.
    """
    if isinstance(inversion, str):
        inversion = InversionSettings(inversion, settings.steps, settings.guidance)
    elif (inversion.steps, inversion.guidance) != (settings.steps, settings.guidance):
        raise ValueError(
            f"the inversion takes {inversion.steps} steps with guidance {inversion.guidance}, the "
            f"edit {settings.steps} with {settings.guidance}; they must agree"
        )
    if not tasks:
        return []
    backbone, batch_size = aligner.backbone, aligner.batch_size
    where = picture_size(backbone, size)
    backbone.schedule.path(settings.steps)  # names a number of steps that is not allowed
    find = finder(aligner, settings)
    try:
        starts = begin(tasks, aligner, inversion, cache, where)
        seen = look(find, starts, aligner, settings)
        pairs = [to_pair(*both, settings) for both in zip(starts, seen, strict=True)]
        with Progress(len(tasks) * settings.steps, "edit", aligner.progress, "step") as bar:
            ends = draw_pairs(backbone, pairs, settings, batch_size, bar)
        pixels = [backbone.decode_latents(latents) for latents in ends]
        figures = _figures(backbone, starts, pixels[0])
    finally:
        backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
    record = {
        "settings": settings.to_dict(),
        "inversion": inversion.to_dict(),
        "model": aligner.record(),
        "versions": versions(),
    }
    drawn = zip(*map(to_pictures, pixels), strict=True)
    return [
        _result(start, alignment, pictures, distance, settings.method, record)
        for start, alignment, pictures, distance in zip(starts, seen, drawn, figures, strict=True)
    ]


def _figures(backbone: Backbone, starts: Sequence[Start], made: Tensor) -> list[dict[str, float]]:
    """How close the reconstructions [B, 3, H, W] come to the pictures that were given."""
    found: list[dict[str, float]] = []
    for start, one in zip(starts, made, strict=True):
        if start.picture is None:
            found.append({})
            continue
        pixels = to_pixels(start.picture, (start.picture.height, start.picture.width))
        found += distances(backbone, pixels, backbone.encode_image(pixels), one[None])
    return found


def _result(
    start: Start,
    seen: Seen | None,
    pictures: tuple[Image.Image, Image.Image],
    figures: Mapping[str, float],
    method: str,
    record: Mapping[str, Any],
) -> Edit:
    pairing, (again, edited) = start.pairing, pictures
    classes = None
    if seen is not None:
        scores = seen.alignment.scores.tolist()
        classes = dict(zip(seen.alignment.classes, scores, strict=True))
    return Edit(
        source=start.picture or again,
        reconstruction=again,
        edited=edited,
        source_prompt=pairing.source,
        target_prompt=pairing.target,
        method=method,
        changes=tuple((change.source, change.target) for change in pairing.changes),
        heatmaps=None if seen is None else seen.heatmaps.numpy(),
        figures=figures,
        warnings=() if seen is None else seen.alignment.warnings,
        provenance={
            "seed": None if start.picture else start.task.seed,
            "weights": dict(start.task.weights or {}),
            "entities": list(start.task.entities),
            "scores": classes,
            **record,
            "inversion": record["inversion"] if start.picture else None,
        },
    )
