"""What is known of a labelled picture: the values that flow from a model to the formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pixalign.core.values import Size
from pixalign.pictures.segments import Segment

Labels = NDArray[np.uint8] | NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class LabelledPicture:
    """A picture's annotations. ``key`` is its path below the folder, with forward slashes.

    ``mask`` [H, W] holds labels of the data set (0 is the background), and ``segments_map`` uint16
    [H, W] the numbers of segments (0: none). ``record`` holds what else is known, as JSON-able
    values: verdicts, scores, uncertainty.
    """

    key: str
    path: Path
    size: Size
    mask: Labels
    segments_map: NDArray[np.uint16]
    segments: tuple[Segment, ...]
    record: Mapping[str, Any] = field(default_factory=dict)

    def region(self, segment: Segment) -> NDArray[np.bool_]:
        """bool [H, W]: the pixels of a segment."""
        region: NDArray[np.bool_] = self.segments_map == segment.number
        return region


class LabelledPictures(Protocol):
    """A finished run: pictures in the order of their keys, read one at a time."""

    classes: tuple[str, ...]  # label i is classes[i - 1]
    about: Mapping[str, Any]  # model, config, versions; instances: whether objects are told apart

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[LabelledPicture]: ...


# Writes a finished run below a folder, and says of it what could not be written.
Format = Callable[[LabelledPictures, Path], Iterable[str]]
