"""CVAT's automatic annotation: masks, or polygons, for the frames of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixalign.alignment.objects import find_objects
from pixalign.config import AlignConfig
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase
from pixalign.pictures.coco import cropped, placed_outlines
from pixalign.pictures.segments import Segment


class CvatFunction:
    """A detection function of cvat_sdk's: its ``spec``, and `detect`."""

    def __init__(
        self,
        model: AlignmentModel,
        phrases: Sequence[Phrase],
        config: AlignConfig,
        *,
        instances: bool = True,
        min_area: int = 0,
    ) -> None:
        from cvat_sdk import auto_annotation

        self._cvat, self._model, self._phrases = auto_annotation, model, tuple(phrases)
        self._config, self._instances, self._min_area = config, instances, min_area
        labels = [
            auto_annotation.label_spec(phrase.name, label, type="mask")
            for label, phrase in enumerate(self._phrases, start=1)
        ]
        self.spec = auto_annotation.DetectionFunctionSpec(labels=labels)

    def detect(self, context: Any, image: Any) -> list[Any]:
        """The shapes of a frame, those that reach the context's confidence."""
        result = self._model.align(image, self._phrases, config=self._config)
        found, segments = find_objects(result, instances=self._instances, min_area=self._min_area)
        shapes: list[Any] = []
        for segment in segments:
            if segment.score < (context.conf_threshold or 0):
                continue
            if context.conv_mask_to_poly:
                rings = placed_outlines(found, segment).rings
                points = [np.round(ring, 2).ravel().tolist() for ring in rings]
                shapes += [self._cvat.polygon(segment.label, flat) for flat in points]
            else:
                shapes.append(self._cvat.mask(segment.label, mask_points(found, segment)))
        return shapes


def mask_points(segments_map: NDArray[np.uint16], segment: Segment) -> list[int]:
    """CVAT's mask: how many pixels of the box are outside, inside, outside ... row by row, and
    then the box as left, top, right and bottom, the last two within it.
    """
    flat = cropped(segments_map, segment).ravel()
    changes = np.flatnonzero(np.diff(flat, prepend=False))
    left, top, width, height = segment.box
    lengths = np.diff(changes, prepend=0, append=flat.size).tolist()
    return [*lengths, left, top, left + width - 1, top + height - 1]
