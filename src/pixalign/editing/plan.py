"""Before an edit is drawn: its noise, its source picture, and the heatmaps of changed words."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pixalign.alignment.result import Alignment
from pixalign.backbones import Backbone
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel as Aligner
from pixalign.core.values import Size
from pixalign.diffusion.sampling import initial_noise, to_pictures
from pixalign.editing.cache import cached_inversions, default_folder
from pixalign.editing.drawing import EditSettings, Pair
from pixalign.editing.inversion import InversionSettings
from pixalign.editing.methods import METHODS, classes_of
from pixalign.editing.walking import sample
from pixalign.methods import Method
from pixalign.pictures.reading import ImageLike, read_image
from pixalign.text.pairing import Columns, Pairing, columns_of, pair


@dataclass(frozen=True, eq=False)
class Task:
    """What is to become of a picture, or without one of what the model draws from a seed.

    ``entities`` are phrases of the source prompt to compare the changed words with, ``weights``
    factors of target words, and ``blend_words`` source and target words for the local blend.
    """

    source: str
    target: str
    image: ImageLike | None = None
    seed: int = 0
    entities: tuple[str, ...] = ()
    weights: Mapping[str, float] | None = None
    blend_words: tuple[str, str] | None = None


@dataclass(frozen=True, eq=False)
class Start:
    """Where an edit begins.

    ``picture`` is the given one as the model sees it, None for one that the model draws; ``words``
    are both sides' columns for the local blend; ``noise`` and ``unconditional`` as in `Pair`.
    """

    task: Task
    pairing: Pairing
    words: tuple[Columns, Columns] | None
    picture: Image.Image | None
    noise: Tensor
    unconditional: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Seen:
    """The source picture's alignment, and which of its classes each change is of."""

    alignment: Alignment
    owners: tuple[int, ...]

    @property
    def heatmaps(self) -> Tensor:
        """float32 [changes, H, W] in [0, 1]."""
        return torch.from_numpy(self.alignment.heatmaps[list(self.owners)])

    @property
    def threshold(self) -> float:
        """At which the heatmaps become masks."""
        threshold = self.alignment.config.threshold
        assert threshold is not None, "the config of a result is resolved"
        return threshold


def finder(aligner: Aligner, settings: EditSettings) -> Aligner | Method | None:
    """What makes the heatmaps, if any are needed; models that it does not know are refused."""
    make = METHODS[settings.method]
    if make is None and settings.blend == "heatmap":
        make = METHODS["elbo"]
    return None if make is None else make(aligner)


def begin(
    tasks: Sequence[Task],
    aligner: Aligner,
    how: InversionSettings,
    cache: str | os.PathLike[str] | None,
    size: Size,
) -> list[Start]:
    """Pair the prompts, then invert the pictures and draw the seeds' noise."""
    backbone = aligner.backbone
    length = backbone.unconditional().embeds.shape[1]
    pairings = [pair(backbone, t.source, t.target, length, t.weights) for t in tasks]
    words = [_blend_words(backbone, *both, length) for both in zip(tasks, pairings, strict=True)]
    pictures = {
        row: read_image(task.image).resize(size[::-1], Image.Resampling.BILINEAR)
        for row, task in enumerate(tasks)
        if task.image is not None
    }
    inversions = cached_inversions(
        default_folder() if cache == "auto" else cache,
        backbone,
        list(pictures.values()),
        [pairings[row].source for row in pictures],
        how,
        model=aligner.name,
        batch_size=aligner.batch_size,
        progress=aligner.progress,
    )
    ways: dict[int, tuple[Tensor, Tensor | None]] = {
        row: (inversion.noise.to(backbone.device), inversion.unconditional)
        for row, inversion in zip(pictures, inversions, strict=True)
    }
    for row, task in enumerate(tasks):
        if row not in ways:
            ways[row] = (initial_noise(backbone, [task.seed], size), None)
    return [
        Start(task, pairings[row], words[row], pictures.get(row), *ways[row])
        for row, task in enumerate(tasks)
    ]


def _blend_words(
    backbone: Backbone, task: Task, pairing: Pairing, length: int
) -> tuple[Columns, Columns] | None:
    """The columns of the words for the local blend: those given, or those that change."""
    if task.blend_words is not None:
        source, target = task.blend_words
        return (
            columns_of(backbone, pairing.source, source, length),
            columns_of(backbone, pairing.target, target, length),
        )
    parts = [part for change in pairing.changes for part in change.columns]
    if not parts:
        return None
    ours, theirs = ({c for part in parts for c in part[side]} for side in (0, 1))
    return tuple(sorted(ours)), tuple(sorted(theirs))


def look(
    find: Aligner | Method | None, starts: Sequence[Start], aligner: Aligner, settings: EditSettings
) -> list[Seen | None]:
    """Align the source pictures of edits in which words change, if heatmaps are needed."""
    rows = [row for row, start in enumerate(starts) if start.pairing.changes]
    found: list[Seen | None] = [None] * len(starts)
    if find is None or not rows:
        return found
    chosen = [classes_of(starts[row].pairing, starts[row].task.entities) for row in rows]
    if find.name == "elbo" and any(len(classes) == 1 for classes, _ in chosen):
        warnings.warn(
            "calibration compares classes, and of some source prompts only one is known; name the "
            "others as entities",
            UserWarning,
            stacklevel=4,
        )
    alignments: Any = find.align(
        _source_pictures([starts[row] for row in rows], aligner, settings),
        [classes for classes, _ in chosen],
        caption=[starts[row].pairing.source for row in rows],
    )
    for row, alignment, (_, owners) in zip(rows, alignments, chosen, strict=True):
        found[row] = Seen(alignment, tuple(owners))
    return found


def _source_pictures(
    starts: Sequence[Start], aligner: Aligner, settings: EditSettings
) -> list[Image.Image]:
    """The given pictures, and those that the model draws from the others' noise."""
    backbone = aligner.backbone
    unseen = [start for start in starts if start.picture is None]
    drawn: list[Image.Image] = []
    if unseen:
        texts = backbone.encode_text([start.pairing.source for start in unseen])
        noise = torch.cat([start.noise for start in unseen])
        path = backbone.schedule.path(settings.steps)
        with Progress(len(unseen) * len(path), "draw", aligner.progress, "step") as bar:
            latents = sample(
                backbone,
                noise,
                texts,
                path,
                settings.guidance,
                batch_size=aligner.batch_size,
                bar=bar,
            )
        drawn = to_pictures(backbone.decode_latents(latents))
    rest = iter(drawn)
    return [next(rest) if start.picture is None else start.picture for start in starts]


def to_pair(start: Start, seen: Seen | None, settings: EditSettings) -> Pair:
    """An edit, ready to be drawn."""
    written = seen is not None and METHODS[settings.method] is not None
    return Pair(
        pairing=start.pairing,
        noise=start.noise,
        unconditional=start.unconditional,
        heatmaps=seen.heatmaps if seen is not None and written else None,
        words=start.words,
        where=None if seen is None else (seen.heatmaps, seen.threshold),
    )
