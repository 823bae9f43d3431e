"""What a call of ``align`` asks for: one image or a list, with the classes and caption of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.core.files import readable
from pixalign.core.values import Phrase
from pixalign.pictures.reading import ImageLike, model_size, read_image, to_pixels


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


def encode_image(backbone: Backbone, image: ImageLike | EncodedImage, resize: str) -> EncodedImage:
    """Read, resize and encode a picture; one that is encoded already must suit."""
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
    source = readable(image) if isinstance(image, str | os.PathLike) else None
    latents = backbone.encode_image(to_pixels(picture, size))
    return EncodedImage(picture, latents, resize, backbone.pipe.vae, source)


@dataclass(frozen=True)
class Request:
    """Images, and what is given for each; ``many`` says whether a list of them was."""

    many: bool
    images: list[Any]
    classes: list[Any]
    captions: list[str | None]
    scores: list[Any]
    target_masks: list[Any]

    @classmethod
    def read(cls, image: Any, classes: Any, caption: Any, scores: Any, masks: Any) -> Request:
        """A list of images takes one list of classes and one caption for all, or one each."""
        many = isinstance(image, list | tuple)
        images = list(image) if many else [image]
        texts = caption if many and isinstance(caption, list | tuple) else [caption] * len(images)
        captions, scores, masks = (
            _one_each(values, what, len(images))
            for values, what in (
                (texts, "captions"),
                (scores if many else [scores], "scores"),
                (masks if many else [masks], "target_masks"),
            )
        )
        for text in captions:
            if text is not None and not isinstance(text, str):
                raise ValueError(f"caption is {text!r}; allowed: a text or None")
        by_image = _classes(classes, len(images)) if many else [classes]
        return cls(many, images, by_image, captions, scores, masks)

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
