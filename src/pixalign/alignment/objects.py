"""The objects of a result, for other programs: COCO's JSON, and supervision's detections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pixalign.pictures.coco import (
    compressed_runs,
    flat_points,
    object_annotation,
    placed_outlines,
    run_lengths,
)
from pixalign.pictures.segments import Segment, find_segments

if TYPE_CHECKING:
    from pixalign.alignment.result import Alignment


def find_objects(
    result: Alignment, threshold: float | None = None, *, instances: bool = True, min_area: int = 0
) -> tuple[NDArray[np.uint16], tuple[Segment, ...]]:
    """`find_segments` of a result's mask; scores are the mean probability of the class."""
    mask, probability = result.mask(threshold), result.confidence(threshold)
    return find_segments(mask, probability, instances=instances, min_area=min_area)


def as_coco(
    result: Alignment, threshold: float | None, polygons: bool, instances: bool, min_area: int
) -> dict[str, Any]:
    """A data set of one picture."""
    found, segments = find_objects(result, threshold, instances=instances, min_area=min_area)
    size = result.image.height, result.image.width
    annotations = []
    shapes: Iterator[Any]
    if polygons:
        shapes = (flat_points(placed_outlines(found, segment)) for segment in segments)
    else:
        shapes = (compressed_runs(runs, size) for runs in run_lengths(found, segments))
    for segment, shape in zip(segments, shapes, strict=True):
        about = {"id": segment.number, "image_id": 1}
        annotations.append({**about, **object_annotation(segment, shape)})
    name = str(result.provenance.get("source") or "")
    return {
        "images": [{"id": 1, "file_name": name, "height": size[0], "width": size[1]}],
        "annotations": annotations,
        "categories": [
            {"id": label, "name": name, "supercategory": ""}
            for label, name in enumerate(result.classes, start=1)
        ],
    }


def as_supervision(
    result: Alignment, threshold: float | None, instances: bool, min_area: int
) -> Any:
    """supervision's ``Detections``."""
    try:
        import supervision
    except ImportError as error:
        raise ValueError("to_supervision() needs supervision: pip install supervision") from error
    found, segments = find_objects(result, threshold, instances=instances, min_area=min_area)
    boxes = np.array([segment.box for segment in segments], dtype=np.float32).reshape(-1, 4)
    labels = np.array([segment.label for segment in segments], dtype=np.int64)
    return supervision.Detections(
        xyxy=np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1),
        mask=np.stack([found == segment.number for segment in segments])
        if segments
        else np.zeros((0, *found.shape), dtype=bool),
        confidence=np.array([segment.score for segment in segments], dtype=np.float32),
        class_id=labels - 1,
        data={"class_name": np.array([result.classes[label - 1] for label in labels], dtype=str)},
    )
