"""What one room asks of an object that it is handed and does not import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol

from pixalign.core.batching import BatchSize
from pixalign.core.values import NetworkCall


class TextReader(Protocol):
    """What knows where the words of a prompt stand among the text columns."""

    streams: tuple[Any, ...]  # of `pixalign.text.streams.TextStream`

    def columns(
        self, text: str, places: Any, length: int, streams: Iterable[Any] | None = None
    ) -> tuple[tuple[int, ...], ...]:
        """The text columns, out of ``length``, of each place: character spans of a text."""


class TappedNetwork(Protocol):
    """A network whose attention is read or written; `pixalign.backbones.Backbone` is one."""

    @property
    def denoiser(self) -> Any:
        """The module that is called."""

    def describe_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NetworkCall:
        """What a call of the module with these arguments has to do with picture and text."""

    def attention_backends(self) -> MutableMapping[Any, Any]:
        """The table of functions that attend in the place of torch's, one for all networks."""


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
        """(image, classes, ...) to an `Alignment`; a list or an iterator of images to as many."""

    def present(self, image: Any, classes: Any, *, config: Any = None, seed: int = 0) -> Any:
        """Candidate classes, the likeliest to be in the picture first."""

    def resolve(
        self, config: Any = None, method: str | None = None, calibrate: str | None = None
    ) -> Any:
        """A config as it is in force on this model."""

    def record(self) -> dict[str, Any]:
        """What results say of the model."""
