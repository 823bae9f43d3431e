"""What a call of ``align`` asks for: one image or a list, with the classes and caption of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.core.checks import check_seed
from pixalign.core.files import readable
from pixalign.core.values import Phrase, Size
from pixalign.pictures.reading import ImageLike, model_size, read_image, to_pixels


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """A picture as one model sees it: encode once, align many times.

    ``latents`` float32 [1, C, h, w] on the model's device, made by ``vae``. Pictures of another
    ``group`` share no batch with it.
    """

    image: Image.Image
    latents: Tensor
    resize: str
    vae: Any
    source: str | None = None
    group: str = ""


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """A picture that is read, and its pixels float32 [1, 3, h, w] as a model will encode them."""

    image: Image.Image
    pixels: Tensor
    resize: str
    source: str | None = None
    group: str = ""


@dataclass(frozen=True)
class SizesSeen:
    """At which sizes a model sees pictures."""

    native: Size
    multiple: int
    largest: int
    few: bool

    @classmethod
    def of(cls, backbone: Backbone) -> SizesSeen:
        """Those of a model."""
        largest, few = backbone.largest_side, backbone.compiled
        return cls(backbone.native_size, backbone.size_multiple, largest, few)

    def size(self, size: Size, resize: str) -> Size:
        """The (height, width) at which a picture of that (height, width) is seen."""
        return model_size(size, resize, self.native, self.multiple, self.largest, few=self.few)


def prepare_image(backbone: Backbone, image: ImageLike, resize: str) -> PreparedImage:
    """Read and resize a picture; this is what threads may do ahead of the network."""
    picture = read_image(image)
    size = SizesSeen.of(backbone).size((picture.height, picture.width), resize)
    pixels = to_pixels(picture, size)
    source = readable(image) if isinstance(image, str | os.PathLike) else None
    return PreparedImage(picture, pixels, resize, source)


def encode_image(
    backbone: Backbone, image: ImageLike | PreparedImage | EncodedImage, resize: str
) -> EncodedImage:
    """Read, resize and encode a picture; one that is encoded already must suit."""
    if isinstance(image, EncodedImage):
        if image.resize != resize:
            raise ValueError(f"image was encoded with resize={image.resize!r}, not {resize!r}")
        if image.vae is not backbone.pipe.vae:
            raise ValueError("image was encoded by another model; encode it with this one")
        return image
    if not isinstance(image, PreparedImage):
        image = prepare_image(backbone, image, resize)
    latents = backbone.encode_image(image.pixels)
    return EncodedImage(image.image, latents, resize, backbone.pipe.vae, image.source, image.group)


@dataclass(frozen=True)
class Request:
    """Images, and what is given for each; ``many`` says whether a list of them was."""

    many: bool
    images: list[Any]
    classes: list[Any]
    captions: list[str | None]
    scores: list[Any]
    target_masks: list[Any]
    seeds: list[int]

    @classmethod
    def read(
        cls, image: Any, classes: Any, caption: Any, scores: Any, masks: Any, seed: Any
    ) -> Request:
        """A list of images takes one list of classes, one caption and one seed, or one each."""
        many = isinstance(image, list | tuple)
        images = list(image) if many else [image]
        each = [
            value if many and isinstance(value, list | tuple) else [value] * len(images)
            for value in (caption, seed)
        ]
        captions, scores, masks, seeds = (
            _one_each(values, what, len(images))
            for values, what in (
                (each[0], "captions"),
                (scores if many else [scores], "scores"),
                (masks if many else [masks], "target_masks"),
                (each[1], "seeds"),
            )
        )
        for text in captions:
            if text is not None and not isinstance(text, str):
                raise ValueError(f"caption is {text!r}; allowed: a text or None")
        for number in seeds:
            check_seed(number)
        by_image = _classes(classes, len(images)) if many else [classes]
        return cls(many, images, by_image, captions, scores, masks, seeds)

    @classmethod
    def each(cls, images: Iterator[Any], *given: Any) -> Iterator[Request]:
        """One request an image; what else is an iterator has one value an image too."""
        names = ("class lists", "captions", "scores", "target_masks", "seeds")
        end = object()
        for count, image in enumerate(images):
            values = [next(x, end) if isinstance(x, Iterator) else x for x in given]
            if end in values:
                raise ValueError(f"{count} {names[values.index(end)]} for more images")
            yield cls.read(image, *values)

    def prepared(self, backbone: Backbone, resize: str) -> Request:
        """The same with its images read, unless they are encoded."""
        images = [
            image
            if isinstance(image, EncodedImage | PreparedImage)
            else prepare_image(backbone, image, resize)
            for image in self.images
        ]
        return replace(self, images=images)

    def check_files(self) -> None:
        """Raise as reading it would where an image is a path and there is no such file."""
        for item in self.images:
            if isinstance(item, str | os.PathLike) and not Path(item).is_file():
                read_image(item)


def _one_each(values: Any, what: str, count: int) -> list[Any]:
    """A value for each image; None stands for none at all."""
    items = [None] * count if values is None else list(values)
    if len(items) != count:
        raise ValueError(f"{len(items)} {what} for {count} images")
    return items


def _classes(classes: Any, count: int) -> list[Any]:
    """One list of classes for all images, or a list of one for each."""
    if isinstance(classes, str | Phrase | Mapping) or not isinstance(classes, Iterable):
        return [classes] * count
    items = list(classes)
    if not items or any(isinstance(item, str | Phrase) for item in items):
        return [items] * count
    return _one_each(items, "class lists", count)
