"""CLIP as a judge: how well pictures and texts go together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

_BATCH = 64


class Clip:
    """A CLIP from the hub or a folder, in float32."""

    def __init__(self, model: str | os.PathLike[str], device: torch.device) -> None:
        from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

        name = os.fspath(model)
        if os.sep in name and Path(name).is_absolute() and not Path(name).is_dir():
            raise FileNotFoundError(f"there is no CLIP in {name!r}")
        try:
            self._model: Any = CLIPModel.from_pretrained(name, dtype=torch.float32)
            self._tokenizer: Any = CLIPTokenizer.from_pretrained(name)
            self._prepare: Any = CLIPImageProcessorPil.from_pretrained(name)
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise OSError(f"cannot load a CLIP from {name!r}: {reason}") from error
        self._model.to(device).eval()
        self.device = device

    def see(self, images: Sequence[Image.Image]) -> Tensor:
        """Unit vectors float32 [B, D] of pictures."""
        pictures = [image.convert("RGB") for image in images]
        return self._vectors(pictures, self._prepare, self._model.get_image_features)

    def read(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors float32 [B, D] of texts; what is longer than the model reads is cut."""
        tokenize = partial(self._tokenizer, padding=True, truncation=True)
        return self._vectors(list(texts), tokenize, self._model.get_text_features)

    @torch.no_grad()
    def _vectors(self, items: list[Any], prepare: Any, features: Any) -> Tensor:
        vectors = []
        for first in range(0, len(items), _BATCH):
            inputs = prepare(items[first : first + _BATCH], return_tensors="pt").to(self.device)
            vectors.append(features(**inputs).pooler_output.float())
        return torch.nn.functional.normalize(torch.cat(vectors), dim=-1)
