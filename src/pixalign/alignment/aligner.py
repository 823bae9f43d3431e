"""`Aligner`: image and classes in, `Alignment` out (Algorithm 1)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from pixalign.alignment.calibrate import calibrate, exponents
from pixalign.alignment.collect import images_at_once
from pixalign.alignment.heatmaps import activation, refine, to_image
from pixalign.alignment.plan import NoisedTimesteps, PromptPlan, plan_prompts, plan_timesteps
from pixalign.alignment.request import Request
from pixalign.alignment.result import Alignment
from pixalign.alignment.scoring import attention_maps, class_scores
from pixalign.attention.layers import combine_layers
from pixalign.backbones import FAMILIES, Backbone, load, wrap
from pixalign.backbones.locations import located, model_name
from pixalign.backbones.model_settings import model_settings
from pixalign.config import AlignConfig
from pixalign.core.batching import BatchSize
from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress
from pixalign.core.provenance import versions
from pixalign.core.values import AttentionMaps, Phrase, Scores
from pixalign.pictures.reading import ImageLike, model_size, read_image, to_pixels
from pixalign.text.prompts import Classes, Prompt


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """A picture as one model sees it: encode once, align many times.

    ``latents`` float32 [1, C, h, w] on the model's device, made by ``vae``.
    """

    image: Image.Image
    latents: Tensor
    resize: str
    vae: Any
    source: str | None = None


class Aligner:
    """Aligns images with classes through a frozen text-to-image pipeline.

    ``Aligner(pipe)`` takes a loaded diffusers pipeline and leaves it exactly as it is;
    `from_pretrained` loads one. ``config`` is what `align` uses unless told otherwise; ``own``
    are the model's settings for what the config leaves open (see `AlignConfig.resolved`).
    ``memory="low"`` takes smaller batches. ``compile=True`` compiles the ELBO's passes, which are
    most of the work: worth it for many images, since each shape takes a minute at first.
    """

    def __init__(
        self,
        pipe: Any,
        *,
        config: AlignConfig | None = None,
        batch_size: int | str = "auto",
        memory: str = "normal",
        compile: bool | str = False,
        progress: bool = False,
        name: str | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        self.backbone = pipe if isinstance(pipe, Backbone) else wrap(pipe)
        self.backbone.check_alignable()
        self.config = config or AlignConfig()
        self.own = dict(own or {})
        self.batch_size = BatchSize(batch_size, memory)
        if compile:
            self.backbone.compile("inductor" if compile is True else compile)
        self.progress = progress
        self.name = name or type(self.backbone.pipe).__name__

    @classmethod
    def from_pretrained(
        cls,
        model: Any = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        config: AlignConfig | None = None,
        batch_size: int | str = "auto",
        memory: str = "normal",
        compile: bool | str = False,
        progress: bool = False,
        **options: Any,
    ) -> Aligner:
        """An aligner from a hub id, a diffusers folder or a loaded pipeline.

        Without a model it is the small one that comes with this package; "lab:sd2", "lab:sdxl" and
        "lab:sd3" are its relatives in the source repository. A folder's pixalign.json holds the
        model's own settings. ``options`` go to diffusers'
        ``from_pretrained``. A loaded pipeline stays on its device and in its number type.
        """
        own: dict[str, Any] = {}
        if not isinstance(model, str | os.PathLike | None):
            if (device, dtype, options) != ("auto", "auto", {}):
                raise ValueError("device, dtype and options cannot change a loaded pipeline")
            backbone, name = wrap(model), None
        else:
            place = located(model)
            own = model_settings(Path(place))
            backbone = load(place, device, dtype, **options)
            name = model_name(model)
        return cls(
            backbone,
            config=config,
            batch_size=batch_size,
            memory=memory,
            compile=compile,
            progress=progress,
            name=name,
            own=own,
        )

    def encode(
        self, image: ImageLike | EncodedImage, *, config: AlignConfig | None = None
    ) -> EncodedImage:
        """Read, resize and encode a picture, to be aligned any number of times."""
        backbone, resize = self.backbone, self.settings(config).resize
        if isinstance(image, EncodedImage):
            if image.resize != resize:
                raise ValueError(f"image was encoded with resize={image.resize!r}, not {resize!r}")
            if image.vae is not backbone.pipe.vae:
                raise ValueError("image was encoded by another model; encode it with this one")
            return image
        picture = read_image(image)
        size = model_size(
            (picture.height, picture.width),
            resize,
            backbone.native_size,
            backbone.size_multiple,
            backbone.largest_side,
            few=backbone.compiled,
        )
        source = os.fspath(image) if isinstance(image, str | os.PathLike) else None
        latents = backbone.encode_image(to_pixels(picture, size))
        return EncodedImage(picture, latents, resize, backbone.pipe.vae, source)

    @overload
    def align(
        self,
        image: ImageLike | EncodedImage,
        classes: Classes,
        *,
        caption: str | None = ...,
        config: AlignConfig | None = ...,
        generator: torch.Generator | None = ...,
        seed: int = ...,
    ) -> Alignment: ...

    @overload
    def align(
        self,
        image: list[Any] | tuple[Any, ...],
        classes: Classes | Sequence[Classes],
        *,
        caption: str | Sequence[str] | None = ...,
        config: AlignConfig | None = ...,
        generator: torch.Generator | None = ...,
        seed: int = ...,
    ) -> list[Alignment]: ...

    def align(
        self,
        image: Any,
        classes: Any,
        *,
        caption: Any = None,
        config: AlignConfig | None = None,
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> Alignment | list[Alignment]:
        """Align an image, or a list of images, with classes.

        ``image`` is a path, PIL image, array or encoded image. ``caption`` replaces the prompt
        "a photo of c1, c2, ..." and must contain the classes. A list of images takes one list
        of classes (and one caption) for all or one each, and gives what single calls would:
        every image draws its noise from ``seed``, or all draw from ``generator`` in turn.
        """
        settings = self.settings(config)
        asked = Request.read(image, classes, caption, seed)
        # All words and pictures are checked before the network costs anything.
        words = [
            plan_prompts(self.backbone, *pair, settings)
            for pair in zip(asked.classes, asked.captions, strict=True)
        ]
        asked.check_files()
        results: dict[int, Alignment] = {}
        try:
            encoded = [self.encode(item, config=config) for item in asked.images]
            with Progress(_passes(words, settings), "align", self.progress) as progress:
                for group in self._groups(encoded, settings, in_order=generator is not None):
                    found = self._align_group(
                        [encoded[i] for i in group],
                        [words[i] for i in group],
                        settings,
                        generator,
                        seed,
                        progress,
                    )
                    results.update(zip(group, found, strict=True))
        finally:
            self.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
        found_all: Alignment | list[Alignment] = asked.answer(
            [results[index] for index in range(len(asked.images))]
        )
        return found_all

    def _groups(
        self, encoded: Sequence[EncodedImage], config: AlignConfig, in_order: bool
    ) -> Iterator[list[int]]:
        """Images of one size go through the network together, as many as memory holds.

        ``in_order`` keeps them as they are given, for a generator that all draw from in turn.
        """
        by_size: dict[Any, list[int]] = {}
        run = 0
        for index, one in enumerate(encoded):
            size = one.latents.shape
            if in_order and index and size != encoded[index - 1].latents.shape:
                run += 1
            by_size.setdefault((run, size), []).append(index)
        for indices in by_size.values():
            latents = encoded[indices[0]].latents
            low = self.batch_size.memory == "low"
            most = 1 if low else images_at_once(self.backbone, latents, config.self_attention)
            for first in range(0, len(indices), most):
                yield indices[first : first + most]

    def _align_group(
        self,
        encoded: Sequence[EncodedImage],
        words: Sequence[PromptPlan],
        config: AlignConfig,
        generator: torch.Generator | None,
        seed: int,
        progress: Progress,
    ) -> list[Alignment]:
        """Images of one size: collecting passes, then the ELBO's, then heatmaps."""
        noted = len(self.batch_size.notes)
        visits = [
            plan_timesteps(
                self.backbone.schedule,
                one.latents,
                config,
                generator if generator is not None else torch.Generator().manual_seed(seed),
            )
            for one in encoded
        ]
        latents = torch.cat([one.latents for one in encoded])
        running = (self.backbone, latents, words)
        how = (config, self.batch_size, progress)
        maps = attention_maps(*running, [pair[0] for pair in visits], *how)
        scoring = [pair[1] for pair in visits if pair[1] is not None]
        scores = (
            class_scores(*running, scoring, *how)
            if scoring
            else [Scores.neutral(len(word.phrases)) for word in words]
        )
        notes = self.batch_size.notes[noted:]
        record = {"seed": seed if generator is None else None, "model": self.model_record()}
        return [
            self._finish(*parts, config, notes, record)
            for parts in zip(encoded, words, maps, scores, visits, strict=True)
        ]

    def _finish(
        self,
        encoded: EncodedImage,
        words: PromptPlan,
        maps: AttentionMaps,
        scores: Scores,
        visits: tuple[NoisedTimesteps, NoisedTimesteps | None],
        config: AlignConfig,
        notes: Sequence[str],
        record: dict[str, Any],
    ) -> Alignment:
        """Lines 6 to 9: calibrate the maps, refine them, and enlarge them to the picture."""
        assert config.cross_weights is not None
        combined = combine_layers(maps.cross, maps.layers, config.cross_weights)
        check_finite(combined, "attention maps", self.backbone.dtype)
        calibrated = calibrate(combined, exponents(scores.scores, bool(config.centred)))
        refined = refine(calibrated, maps.self_attention, maps.grid)
        heatmaps = to_image(refined, (encoded.image.height, encoded.image.width))
        shown = (words.prompts, visits[0])
        return conclude(encoded, words, shown, scores, (combined, heatmaps), config, notes, record)

    def settings(self, config: AlignConfig | None) -> AlignConfig:
        """A config, or this aligner's, as it is in force on this model."""
        chosen = config or self.config
        for family in chosen.by_family:
            check_choice("a family in by_family", family, tuple(FAMILIES))
        return chosen.resolved(self.backbone.family, self.own)

    def model_record(self) -> dict[str, Any]:
        """What results say of the model."""
        return {"name": self.name, **self.backbone.record()}


def _passes(words: Sequence[PromptPlan], config: AlignConfig) -> int:
    """How many forward passes an alignment takes."""
    collecting = sum(len(word.prompts) for word in words) * config.collect_count
    texts = sum(len(set(word.elbo_texts)) for word in words)
    return collecting + (texts * config.elbo_count if config.calibrate else 0)


def check_finite(values: Tensor, what: str, dtype: torch.dtype) -> None:
    """Raise a FloatingPointError that says what to do unless all values are finite."""
    if not bool(torch.isfinite(values).all()):
        raise FloatingPointError(
            f"{what} hold NaN in {dtype}; load the model with dtype='float32' or 'bfloat16'"
        )


def conclude(
    encoded: EncodedImage,
    words: PromptPlan,
    shown: tuple[Sequence[Prompt], NoisedTimesteps],
    scores: Scores,
    maps: tuple[Tensor, Tensor],
    config: AlignConfig,
    notes: Sequence[str],
    record: Mapping[str, Any],
) -> Alignment:
    """The result of an image that was ``shown`` under some prompts at some timesteps.

    ``maps`` are the combined cross-attention [N, h, w], by which classes that activate nothing are
    named in the warnings after the ``notes``, and the heatmaps [N, H, W]. What the provenance says
    begins with the ``record``.
    """
    combined, heatmaps = maps
    prompts, visit = shown
    assert config.min_peak_ratio is not None
    return Alignment(
        image=encoded.image,
        phrases=words.phrases,
        losses=scores.losses.numpy(),
        elbo=scores.elbo.numpy(),
        scores=scores.scores.numpy(),
        heatmaps=heatmaps.numpy(),
        config=config,
        warnings=(*notes, *_weak_classes(words.phrases, combined, config.min_peak_ratio)),
        provenance={
            **record,
            "prompts": [prompt.text for prompt in prompts],
            "timesteps": {
                "collect": visit.steps.time.tolist(),
                "elbo": list(scores.timesteps),
            },
            "forwards": {
                "collect": len(prompts) * len(visit.steps),
                "elbo": len(set(words.elbo_texts)) * len(scores.timesteps),
            },
            "source": encoded.source,
            "versions": versions(),
        },
    )


def _weak_classes(phrases: Sequence[Phrase], combined: Tensor, bound: float) -> list[str]:
    """The paper's limitation: a class that activates nothing cannot be recovered."""
    return [
        f"class {phrase.name!r} has hardly any activation (peak {peak:.2f} times the mean, "
        f"below {bound:g}); its map cannot be trusted"
        for phrase, peak in zip(phrases, activation(combined).tolist(), strict=True)
        if peak < bound
    ]
