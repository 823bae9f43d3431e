"""`Aligner`: image and classes in, `Alignment` out (Algorithm 1)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from pixalign import elbo
from pixalign.alignment import Alignment
from pixalign.backbones import FAMILIES, Backbone, load, wrap
from pixalign.batching import BatchSize
from pixalign.calibrate import alignment_scores, calibrate, weighted_elbo
from pixalign.collect import collect
from pixalign.config import AlignConfig
from pixalign.heatmaps import activation, combine_layers, refine, to_image
from pixalign.images import ImageLike, model_size, read_image, to_pixels
from pixalign.plan import Visit, Words, plan_visits, plan_words
from pixalign.progress import Progress
from pixalign.prompts import Classes
from pixalign.provenance import versions
from pixalign.types import AttentionMaps, Phrase, Scores, allowed


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
    `from_pretrained` loads one. ``config`` is what `align` uses unless told otherwise.
    """

    def __init__(
        self,
        pipe: Any,
        *,
        config: AlignConfig | None = None,
        batch_size: int | str = "auto",
        progress: bool = False,
        name: str | None = None,
    ) -> None:
        self.backbone = pipe if isinstance(pipe, Backbone) else wrap(pipe)
        self.backbone.check_alignable()
        self.config = config or AlignConfig()
        self.batch_size = BatchSize(batch_size)
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
        progress: bool = False,
        **options: Any,
    ) -> Aligner:
        """An aligner from a hub id, a diffusers folder or a loaded pipeline.

        ``options`` go to diffusers' ``from_pretrained``. A loaded pipeline stays on its device
        and in its number type.
        """
        if model is None:
            raise ValueError(
                "this version carries no model of its own; name a hub id such as "
                "'stable-diffusion-v1-5/stable-diffusion-v1-5', a diffusers folder or a pipeline"
            )
        if not isinstance(model, str | os.PathLike):
            if (device, dtype, options) != ("auto", "auto", {}):
                raise ValueError("device, dtype and options cannot change a loaded pipeline")
            backbone, name = wrap(model), None
        else:
            backbone = load(model, device, dtype, **options)
            name = os.fspath(model)
        return cls(backbone, config=config, batch_size=batch_size, progress=progress, name=name)

    def encode(
        self, image: ImageLike | EncodedImage, *, config: AlignConfig | None = None
    ) -> EncodedImage:
        """Read, resize and encode a picture, to be aligned any number of times."""
        backbone, resize = self.backbone, self._settings(config).resize
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
        settings = self._settings(config)
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"seed is {seed!r}; allowed: a whole number from 0 to 2**63 - 1")
        many = isinstance(image, list | tuple)
        images = list(image) if many else [image]
        captions = _captions(caption if many else [caption], len(images))
        each = _class_lists(classes, len(images)) if many else [classes]
        # All words and paths are checked before the first image costs anything.
        words = [
            plan_words(self.backbone, *pair, settings) for pair in zip(each, captions, strict=True)
        ]
        for item in images:
            if isinstance(item, str | os.PathLike) and not Path(item).is_file():
                read_image(item)
        try:
            results = [
                self._align_one(item, word, settings, generator, seed)
                for item, word in zip(images, words, strict=True)
            ]
        finally:
            self.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
        return results if many else results[0]

    def _align_one(
        self,
        image: ImageLike | EncodedImage,
        words: Words,
        config: AlignConfig,
        generator: torch.Generator | None,
        seed: int,
    ) -> Alignment:
        encoded = self.encode(image, config=config)
        own = generator if generator is not None else torch.Generator().manual_seed(seed)
        noted = len(self.batch_size.notes)
        visits = plan_visits(self.backbone.schedule, encoded.latents, config, own)
        maps, scores = self._run(encoded.latents, words, *visits, config)
        combined = combine_layers(maps.cross, maps.factors, maps.middle, config.cross_weights)
        if not bool(torch.isfinite(combined).all()):
            raise FloatingPointError(
                f"attention maps hold NaN in {self.backbone.dtype}; "
                "load the model with dtype='float32' or 'bfloat16'"
            )
        calibrated = calibrate(combined, scores.exponents)
        refined = refine(calibrated, maps.self_attention, maps.grid)
        weak = _weak(words.phrases, combined, config.weak_activation)
        return Alignment(
            image=encoded.image,
            phrases=words.phrases,
            losses=scores.losses.numpy(),
            elbo=scores.elbo.numpy(),
            scores=scores.scores.numpy(),
            heatmaps=to_image(refined, (encoded.image.height, encoded.image.width)).numpy(),
            config=config,
            warnings=(*self.batch_size.notes[noted:], *weak),
            provenance={
                "seed": seed if generator is None else None,
                "prompts": [prompt.text for prompt in words.prompts],
                "timesteps": {
                    "collect": visits[0].steps.time.tolist(),
                    "elbo": list(scores.timesteps),
                },
                "source": encoded.source,
                "model": self._model_record(),
                "versions": versions(),
            },
        )

    def _run(
        self,
        latents: Tensor,
        words: Words,
        collecting: Visit,
        scoring: Visit | None,
        config: AlignConfig,
    ) -> tuple[AttentionMaps, Scores]:
        """All forward passes: collecting, then the ELBO."""
        texts = sorted(set(words.elbo_texts))
        passes = len(words.prompts) * len(collecting.steps)
        passes += len(texts) * len(scoring.steps) if scoring is not None else 0
        with Progress(passes, "align", self.progress) as progress:
            maps = self._collect(latents, words, collecting, config, progress)
            if scoring is None:
                return maps, Scores.neutral(len(words.phrases))
            losses = elbo.losses(
                self.backbone,
                latents,
                self.backbone.encode_text(texts),
                scoring.steps,
                scoring.noise,
                self.batch_size,
                progress,
            )
        # Equal texts share one row, so their losses are equal to the last bit.
        losses = losses[[texts.index(text) for text in words.elbo_texts]]
        weights = scoring.steps.weights(config.elbo_weighting, self.backbone.objective)
        bounds = weighted_elbo(losses, weights)
        return maps, Scores(
            losses=losses,
            elbo=bounds.float(),
            scores=alignment_scores(bounds, config.gamma),
            timesteps=tuple(scoring.steps.time.tolist()),
        )

    def _collect(
        self, latents: Tensor, words: Words, visit: Visit, config: AlignConfig, progress: Progress
    ) -> AttentionMaps:
        backbone = self.backbone
        texts = backbone.encode_text([prompt.text for prompt in words.prompts])
        length = texts.embeds.shape[1]
        return collect(
            backbone,
            latents,
            texts,
            [backbone.token_spans(p, length, config.text_columns) for p in words.prompts],
            visit.steps,
            visit.noise,
            self_attention=config.self_attention,
            image_only_attention=config.image_only_attention,
            batch_size=self.batch_size,
            progress=progress,
        )

    def _settings(self, config: AlignConfig | None) -> AlignConfig:
        chosen = config or self.config
        for family in chosen.by_family:
            allowed("a family in by_family", family, tuple(FAMILIES))
        return chosen.for_family(self.backbone.family)

    def _model_record(self) -> dict[str, Any]:
        backbone = self.backbone
        return {
            "name": self.name,
            "family": backbone.family,
            "objective": backbone.objective,
            "device": str(backbone.device),
            "dtype": str(backbone.dtype).removeprefix("torch."),
        }


def _weak(phrases: Sequence[Phrase], combined: Tensor, bound: float) -> list[str]:
    """The paper's limitation: a class that activates nothing cannot be recovered."""
    return [
        f"class {phrase.name!r} has hardly any activation (peak {peak:.2f} times the mean, "
        f"below {bound:g}); its map cannot be trusted"
        for phrase, peak in zip(phrases, activation(combined).tolist(), strict=True)
        if peak < bound
    ]


def _class_lists(classes: Any, count: int) -> list[Any]:
    """One list of classes for all images, or a list of one for each."""
    if isinstance(classes, str | Phrase) or not isinstance(classes, Iterable):
        return [classes] * count
    items = list(classes)
    if not items or any(isinstance(item, str | Phrase) for item in items):
        return [items] * count
    if len(items) != count:
        raise ValueError(f"{len(items)} class lists for {count} images")
    return items


def _captions(caption: Any, count: int) -> list[str | None]:
    """One caption for all images, or a list of one for each."""
    captions = list(caption) if isinstance(caption, list | tuple) else [caption] * count
    if len(captions) != count:
        raise ValueError(f"{len(captions)} captions for {count} images")
    for one in captions:
        if one is not None and not isinstance(one, str):
            raise ValueError(f"caption is {one!r}; allowed: a text or None")
    return captions
