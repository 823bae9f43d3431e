"""What one room asks of an object that it is handed and does not import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pixalign.core.batching import BatchSize
from pixalign.core.values import Size, TextCondition


class TextReader(Protocol):
    """What knows where the words of a prompt stand among the text columns."""

    streams: tuple[Any, ...]  # of `pixalign.text.streams.TextStream`

    def columns(
        self, prompt: Any, length: int, streams: Iterable[Any] | None = None
    ) -> tuple[tuple[int, ...], ...]:
        """The text columns of each class of a prompt, out of ``length``."""


class Denoiser(TextReader, Protocol):
    """A frozen network as sampling sees it; `pixalign.backbones.Backbone` is one."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def objective(self) -> str:
        """What it estimates, a key of `pixalign.diffusion.objectives.OBJECTIVES`."""

    @property
    def schedule(self) -> Any:
        """The noise schedule it was trained with."""

    @property
    def native_size(self) -> Size:
        """(height, width) in pixels that it was trained at."""

    @property
    def size_multiple(self) -> int:
        """Sides of a picture are multiples of this many pixels."""

    @property
    def largest_side(self) -> int:
        """The longest side of a picture, in pixels."""

    def latent_shape(self, size: Size) -> tuple[int, int, int]:
        """(channels, height, width) of the latents of a picture of that (height, width)."""

    def encode_text(self, prompts: Sequence[str]) -> TextCondition:
        """The embeddings of prompts."""

    def unconditional(self) -> TextCondition:
        """What guidance leads away from."""

    def predict(self, z: Tensor, steps: Any, text: TextCondition) -> Tensor:
        """The network's output at noised latents: float32 [B, C, h, w], without gradients."""

    def checked(self, output: Tensor) -> Tensor:
        """An output; an error where it is not finite."""


class AlignmentModel(Protocol):
    """What a task asks of a model; `pixalign.model.Model` is one."""

    name: str
    backbone: Any  # a `pixalign.backbones.Backbone`
    batch_size: BatchSize
    progress: bool

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model's own (`pixalign.config.MODEL_SETTINGS`)."""

    def encode(self, image: Any, *, config: Any = None) -> Any:
        """A picture as the model sees it, to be aligned any number of times."""

    @property
    def align(self) -> Any:
        """(image, classes, ...) to an `Alignment`, or a list of them for a list of images."""

    def resolve(
        self, config: Any = None, method: str | None = None, calibrate: str | None = None
    ) -> Any:
        """A config as it is in force on this model."""

    def record(self) -> dict[str, Any]:
        """What results say of the model."""
