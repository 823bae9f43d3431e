"""Grounding DINO and SAM, as annotators of pictures: boxes of phrases, and masks in boxes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from pixalign.backbones.fingerprint import fingerprint

Loaded = TypeVar("Loaded")
SEGMENTERS = ("sam", "sam2", "sam2_video")  # what a config calls them: the last are SAM 2's files


class GroundedSam:
    """A detector of phrases and a segmenter of boxes, from the hub or folders, in float32.

    A box is of the phrase whose words it fits best, and counts from ``box_threshold`` on: the
    highest of its scores of the phrase's words.
    """

    def __init__(
        self,
        detector: str | os.PathLike[str],
        segmenter: str | os.PathLike[str],
        device: torch.device,
        box_threshold: float = 0.35,
    ) -> None:
        if not 0 <= box_threshold <= 1:
            raise ValueError(f"box_threshold is {box_threshold!r}; allowed: 0 to 1")
        self.names = {"detector": os.fspath(detector), "segmenter": os.fspath(segmenter)}
        self.device, self.box_threshold = device, box_threshold
        self._detector, self._read, self._see = _loaded("Grounding DINO", detector, _detector)
        self._segmenter, self._prepare = _loaded("SAM", segmenter, _segmenter)
        for network in (self._detector, self._segmenter):
            network.to(device).eval()

    def record(self) -> dict[str, Any]:
        """Names, weights and settings, as plain values."""
        weights = {"detector": self._detector, "segmenter": self._segmenter}
        return {
            **self.names,
            "weights": fingerprint(_Parts(weights)),
            "box_threshold": self.box_threshold,
        }

    @torch.no_grad()
    def boxes(self, image: Image.Image, phrases: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes float32 [B, 4] as (left, top, right, bottom) in pixels, their scores float32 [B],
        and int64 [B]: of which phrase each is. The best come first."""
        text, spans = grounding_text(phrases)
        read = self._read(text, return_offsets_mapping=True, return_tensors="pt")
        offsets = read.pop("offset_mapping")[0].tolist()
        if len(offsets) > self._detector.config.max_text_len:
            most = self._detector.config.max_text_len
            raise ValueError(f"{len(phrases)} phrases have {len(offsets)} tokens; allowed: {most}")
        seen = self._see(image.convert("RGB"), return_tensors="pt")
        out = self._detector(**read.to(self.device), **seen.to(self.device))
        likely = out.logits[0].float().sigmoid()  # [queries, tokens]
        fits = []
        for start, end in spans:
            own = [n for n, (a, b) in enumerate(offsets) if a < b and a < end and b > start]
            fits.append(likely[:, own].amax(1))
        scores, of = torch.stack(fits, 1).max(1)
        kept = (scores >= self.box_threshold).nonzero()[:, 0]
        kept = kept[scores[kept].argsort(descending=True, stable=True)]
        middle, half = out.pred_boxes[0, kept, :2].float(), out.pred_boxes[0, kept, 2:].float() / 2
        sides = torch.tensor([*image.size, *image.size], dtype=torch.float32, device=self.device)
        corners = torch.cat([middle - half, middle + half], 1).clamp(0, 1) * sides
        return corners.cpu(), scores[kept].cpu(), of[kept].cpu()

    @torch.no_grad()
    def masks(self, image: Image.Image, boxes: Tensor) -> Tensor:
        """bool [B, H, W]: what the segmenter finds in each box."""
        size = (image.height, image.width)
        if not len(boxes):
            return torch.zeros(0, *size, dtype=torch.bool)
        pixels, shown, whole = self._prepare(image.convert("RGB"))
        scale = torch.tensor([shown[1] / size[1], shown[0] / size[0]]).repeat(2)
        out = self._segmenter(
            pixel_values=pixels.to(self.device),
            input_boxes=(boxes * scale)[None].to(self.device),
            multimask_output=False,
        )
        logits = out.pred_masks[0].float()
        if whole != shown:  # what lies beside the picture was filled up
            logits = functional.interpolate(logits, whole, mode="bilinear")
            logits = logits[..., : shown[0], : shown[1]]
        found = functional.interpolate(logits, size, mode="bilinear")[:, 0] > 0
        return found.cpu()


class _Parts:
    """Networks as `fingerprint` reads them."""

    def __init__(self, components: dict[str, Any]) -> None:
        self.components = components


def grounding_text(phrases: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """ "a cat. a red car.", in which phrases do not see each other, and where each stands."""
    text, spans = "", []
    for phrase in phrases:
        words = " ".join(phrase.lower().replace(".", " ").replace("?", " ").split())
        if not words:
            raise ValueError(f"phrase is {phrase!r}; allowed: one or more words")
        spans.append((len(text), len(text) + len(words)))
        text += f"{words}. "
    return text.rstrip(), spans


def _loaded(what: str, name: str | os.PathLike[str], load: Callable[[str], Loaded]) -> Loaded:
    """What ``load`` makes of a hub id or folder; an error names both."""
    where = os.fspath(name)
    if os.sep in where and Path(where).is_absolute() and not Path(where).is_dir():
        raise FileNotFoundError(f"there is no {what} in {where!r}")
    try:
        return load(where)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise OSError(f"cannot load {what} from {where!r}: {reason}") from error


def _detector(name: str) -> tuple[Any, Any, Any]:
    """The network, and what prepares texts and pictures for it."""
    from transformers import (
        AutoConfig,
        AutoTokenizer,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessorPil,
    )

    _check_kind(AutoConfig.from_pretrained(name).model_type, ("grounding-dino",))
    network = GroundingDinoForObjectDetection.from_pretrained(
        name, dtype=torch.float32, use_safetensors=True
    )
    images = GroundingDinoImageProcessorPil.from_pretrained(name)
    return network, AutoTokenizer.from_pretrained(name), images


def _segmenter(name: str) -> tuple[Any, Callable[[Image.Image], Any]]:
    """The network, and what gives of a picture its pixels, its size there, and theirs."""
    from transformers import (
        AutoConfig,
        Sam2Model,
        SamImageProcessorPil,
        SamModel,
        ViTImageProcessorPil,
    )

    kind = AutoConfig.from_pretrained(name).model_type
    _check_kind(kind, SEGMENTERS)
    how: dict[str, Any] = {"dtype": torch.float32, "use_safetensors": True}
    if kind == "sam":
        sam = SamImageProcessorPil.from_pretrained(name)

        def padded(image: Image.Image) -> Any:
            seen = sam(image, return_tensors="pt")
            shown = tuple(seen["reshaped_input_sizes"][0].tolist())
            return seen["pixel_values"], shown, (sam.pad_size["height"], sam.pad_size["width"])

        return SamModel.from_pretrained(name, **how), padded
    # SAM 2's own processor needs torchvision; it stretches pictures as ViT's does.
    stretching = ViTImageProcessorPil.from_pretrained(name)

    def stretched(image: Image.Image) -> Any:
        pixels = stretching(image, return_tensors="pt")["pixel_values"]
        return pixels, tuple(pixels.shape[-2:]), tuple(pixels.shape[-2:])

    return Sam2Model.from_pretrained(name, **how), stretched


def _check_kind(kind: str, known: Sequence[str]) -> None:
    if kind not in known:
        raise ValueError(f"it is a {kind!r} model; allowed: {', '.join(known)}")
