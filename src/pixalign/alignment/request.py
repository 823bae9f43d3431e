"""What a call of ``align`` asks for: one image or a list, with the classes and caption of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
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
    source = os.fspath(image) if isinstance(image, str | os.PathLike) else None
    latents = backbone.encode_image(to_pixels(picture, size))
    return EncodedImage(picture, latents, resize, backbone.pipe.vae, source)


@dataclass(frozen=True)
class Request:
    """Images with their classes and captions; ``many`` says whether a list was given."""

    many: bool
    images: list[Any]
    classes: list[Any]
    captions: list[str | None]

    @classmethod
    def read(cls, image: Any, classes: Any, caption: Any, seed: int) -> Request:
        """A list of images takes one list of classes and one caption for all, or one each."""
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"seed is {seed!r}; allowed: a whole number from 0 to 2**63 - 1")
        many = isinstance(image, list | tuple)
        images = list(image) if many else [image]
        captions = _captions(caption if many else [caption], len(images))
        return cls(many, images, _classes(classes, len(images)) if many else [classes], captions)

    def check_files(self) -> None:
        """Raise as reading it would where an image is a path and there is no such file."""
        for item in self.images:
            if isinstance(item, str | os.PathLike) and not Path(item).is_file():
                read_image(item)

    def answer(self, results: Sequence[Any]) -> Any:
        """The results as they were asked for: a list, or the only one."""
        return list(results) if self.many else results[0]


def _classes(classes: Any, count: int) -> list[Any]:
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
