"""`Aligner`: image and classes in, `Alignment` out (Algorithm 1)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from pixalign import elbo
from pixalign.alignment import Alignment
from pixalign.backbones import Backbone, load, wrap
from pixalign.batching import BatchSize
from pixalign.calibrate import alignment_scores, calibrate, weighted_elbo
from pixalign.collect import collect
from pixalign.config import AlignConfig
from pixalign.heatmaps import activation, combine_layers, refine, to_image
from pixalign.images import ImageLike, model_size, read_image, to_pixels
from pixalign.progress import Progress
from pixalign.prompts import Prompt, as_phrases, canonical_order, compose, locate, split
from pixalign.provenance import versions
from pixalign.schedule import Steps, positions
from pixalign.types import AttentionMaps, Phrase, Scores

Classes = Iterable[str | Phrase]


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """A picture as one model sees it: encode once, align many times.

    ``latents`` float32 [1, C, h, w] on the model's device.
    """

    image: Image.Image
    latents: Tensor
    resize: str
    source: str | None = None


@dataclass(frozen=True)
class _Plan:
    """Everything that is decided before the network runs."""

    prompts: list[Prompt]
    collect_steps: Steps
    collect_noise: Tensor
    elbo_steps: Steps | None
    elbo_noise: Tensor | None


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
        resize = self._settings(config).resize
        if isinstance(image, EncodedImage):
            if image.resize != resize:
                raise ValueError(f"image was encoded with resize={image.resize!r}, not {resize!r}")
            return image
        picture = read_image(image)
        backbone = self.backbone
        size = model_size(
            (picture.height, picture.width),
            resize,
            backbone.native_size,
            backbone.size_multiple,
            backbone.largest_side,
        )
        source = os.fspath(image) if isinstance(image, str | os.PathLike) else None
        latents = backbone.encode_image(to_pixels(picture, size))
        return EncodedImage(picture, latents, resize, source)

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
        if not isinstance(image, list | tuple):
            return self._align_one(image, classes, caption, config, generator, seed)
        images = list(image)
        classes_each = _one_each(classes, len(images), "class lists")
        captions = [caption] * len(images)
        if isinstance(caption, list | tuple):
            captions = list(caption)
            if len(captions) != len(images):
                raise ValueError(f"{len(captions)} captions for {len(images)} images")
        return [
            self._align_one(*each, config, generator, seed)
            for each in zip(images, classes_each, captions, strict=True)
        ]

    def _align_one(
        self,
        image: ImageLike | EncodedImage,
        classes: Classes,
        caption: str | None,
        config: AlignConfig | None,
        generator: torch.Generator | None,
        seed: int,
    ) -> Alignment:
        settings = self._settings(config)
        phrases = as_phrases(classes)
        prompts = self._attention_prompts(phrases, caption, settings)
        encoded = self.encode(image, config=settings)
        own = generator if generator is not None else torch.Generator().manual_seed(seed)
        notes_before = len(self.batch_size.notes)
        plan = self._plan(prompts, encoded.latents, settings, own)
        maps, scores = self._run(encoded.latents, phrases, plan, settings)
        combined = combine_layers(maps, settings.cross_weights)
        if not bool(torch.isfinite(combined).all()):
            raise FloatingPointError(
                f"attention maps hold NaN in {self.backbone.dtype}; "
                "load the model with dtype='float32' or 'bfloat16'"
            )
        calibrated = calibrate(combined, scores.exponents)
        refined = refine(calibrated, maps.self_attention, maps.grid)
        size = (encoded.image.height, encoded.image.width)
        return Alignment(
            image=encoded.image,
            phrases=phrases,
            losses=scores.losses.numpy(),
            elbo=scores.elbo.numpy(),
            scores=scores.scores.numpy(),
            heatmaps=to_image(refined, size).cpu().numpy(),
            config=settings,
            warnings=(
                *self.batch_size.notes[notes_before:],
                *_weak(phrases, combined, settings.weak_activation),
            ),
            provenance={
                "seed": seed if generator is None else None,
                "prompts": [prompt.text for prompt in prompts],
                "timesteps": {
                    "collect": plan.collect_steps.time.tolist(),
                    "elbo": list(scores.timesteps),
                },
                "source": encoded.source,
                "model": self._model_record(),
                "versions": versions(),
            },
        )

    def _settings(self, config: AlignConfig | None) -> AlignConfig:
        return (config or self.config).for_family(self.backbone.family)

    def _attention_prompts(
        self, phrases: tuple[Phrase, ...], caption: str | None, config: AlignConfig
    ) -> list[Prompt]:
        whole = config.columns == "phrase"
        if caption is None:
            given = config.prompt_order == "given"
            order = range(len(phrases)) if given else canonical_order(phrases)
            return split(phrases, list(order), config.template, self.backbone.fits, whole)
        prompt = locate(phrases, caption, whole)
        if not self.backbone.fits(prompt.text):
            raise ValueError(
                f"the caption is longer than the model's text encoder reads: {caption!r}; "
                "shorten it or leave it out"
            )
        return [prompt]

    def _plan(
        self, prompts: list[Prompt], latents: Tensor, config: AlignConfig, own: torch.Generator
    ) -> _Plan:
        """Draw noise, collecting first and ELBO second, then any random timesteps."""

        def draw(count: int) -> Tensor:
            shape = (count, *latents.shape[1:])
            drawn = torch.randn(shape, generator=own, device=own.device, dtype=torch.float32)
            return drawn.to(latents.device)

        collect_count = len(config.collect_timesteps or ()) or config.collect_steps
        elbo_count = len(config.elbo_timesteps or ()) or config.elbo_steps
        collect_noise = draw(collect_count)
        elbo_noise = draw(elbo_count) if config.calibrate else None
        schedule = self.backbone.schedule

        def visit(strategy: str, count: int, bounds: Any, indices: Any) -> Steps:
            if indices is not None:
                return schedule.at_indices(indices)
            return schedule.at_positions(positions(strategy, count, bounds, own))

        collect_steps = visit(
            config.collect_strategy, collect_count, config.collect_range, config.collect_timesteps
        )
        elbo_steps = None
        if config.calibrate:
            elbo_steps = visit(
                config.elbo_strategy, elbo_count, config.elbo_range, config.elbo_timesteps
            )
        return _Plan(prompts, collect_steps, collect_noise, elbo_steps, elbo_noise)

    def _run(
        self, latents: Tensor, phrases: tuple[Phrase, ...], plan: _Plan, config: AlignConfig
    ) -> tuple[AttentionMaps, Scores]:
        """All forward passes: collecting, then the ELBO."""
        texts = sorted({_elbo_text(phrase, config) for phrase in phrases})
        passes = len(plan.prompts) * len(plan.collect_steps)
        passes += len(texts) * len(plan.elbo_steps) if plan.elbo_steps is not None else 0
        with Progress(passes, "align", self.progress) as progress:
            maps = self._collect(latents, plan, config, progress)
            if plan.elbo_steps is None or plan.elbo_noise is None:
                return maps, Scores.neutral(len(phrases))
            each = elbo.losses(
                self.backbone,
                latents,
                self.backbone.encode_text(texts),
                plan.elbo_steps,
                plan.elbo_noise,
                self.batch_size,
                progress,
            )
        # Equal texts share one row, so their losses are equal to the last bit.
        losses = each[[texts.index(_elbo_text(phrase, config)) for phrase in phrases]]
        weights = plan.elbo_steps.weights(config.elbo_weighting, self.backbone.objective)
        bounds = weighted_elbo(losses, weights)
        return maps, Scores(
            losses=losses,
            elbo=bounds.float(),
            scores=alignment_scores(bounds, config.gamma),
            timesteps=tuple(plan.elbo_steps.time.tolist()),
        )

    def _collect(
        self, latents: Tensor, plan: _Plan, config: AlignConfig, progress: Progress
    ) -> AttentionMaps:
        backbone = self.backbone
        texts = backbone.encode_text([prompt.text for prompt in plan.prompts])
        length = texts.embeds.shape[1]
        return collect(
            backbone,
            latents,
            texts,
            [backbone.token_spans(p, length, config.text_columns) for p in plan.prompts],
            plan.collect_steps,
            plan.collect_noise,
            self_attention=config.self_attention,
            image_only_attention=config.image_only_attention,
            batch_size=self.batch_size,
            progress=progress,
        )

    def _model_record(self) -> dict[str, Any]:
        backbone = self.backbone
        return {
            "name": self.name,
            "family": backbone.family,
            "objective": backbone.objective,
            "device": str(backbone.device),
            "dtype": str(backbone.dtype).removeprefix("torch."),
        }


def _elbo_text(phrase: Phrase, config: AlignConfig) -> str:
    words = phrase.phrase if config.elbo_text == "phrase" else phrase.name
    return compose([Phrase(words)], [0], config.template).text


def _weak(phrases: Sequence[Phrase], combined: Tensor, bound: float) -> list[str]:
    """The paper's limitation: a class that activates nothing cannot be recovered."""
    return [
        f"class {phrase.name!r} has hardly any activation (peak {peak:.2f} times the mean, "
        f"below {bound:g}); its map cannot be trusted"
        for phrase, peak in zip(phrases, activation(combined).tolist(), strict=True)
        if peak < bound
    ]


def _one_each(classes: Any, count: int, what: str) -> list[Any]:
    """One list of classes for all images, or a list of one for each."""
    classes = classes if isinstance(classes, str) else list(classes)
    if classes and not any(isinstance(item, str | Phrase) for item in classes):
        if len(classes) != count:
            raise ValueError(f"{len(classes)} {what} for {count} images")
        return list(classes)
    return [classes] * count
