"""An object as COCO writes it: its runs of pixels, or its polygons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixalign.core.values import Size
from pixalign.pictures.polygons import Outlines, outlines
from pixalign.pictures.segments import Segment


def cropped(segments_map: NDArray[np.uint16], segment: Segment) -> NDArray[np.bool_]:
    """bool [height, width]: a segment's pixels in its box."""
    left, top, width, height = segment.box
    region: NDArray[np.bool_] = (
        segments_map[top : top + height, left : left + width] == segment.number
    )
    return region


def placed_outlines(segments_map: NDArray[np.uint16], segment: Segment) -> Outlines:
    """A segment's outlines, at their place in the picture."""
    found = outlines(cropped(segments_map, segment))
    return found._replace(rings=tuple(ring + segment.box[:2] for ring in found.rings))


def run_lengths(
    segments_map: NDArray[np.uint16], segments: Sequence[Segment]
) -> Iterator[list[int]]:
    """How many pixels are outside, inside, outside ... each segment, down one column after another.

    Those of a segment add up to the number of pixels; the first may be 0.
    """
    down = segments_map.T.ravel()
    starts = np.flatnonzero(down[1:] != down[:-1]) + 1
    edges = np.concatenate([[0], starts, [down.size]])
    owners = down[edges[:-1]]
    order = np.argsort(owners, kind="stable")
    numbers = [segment.number for segment in segments]
    first, last = (np.searchsorted(owners[order], numbers, side) for side in ("left", "right"))
    for runs in (order[low:high] for low, high in zip(first, last, strict=True)):
        changes = np.stack([edges[runs], edges[runs + 1]], axis=1).ravel()
        lengths: list[int] = np.diff(changes, prepend=0, append=down.size).tolist()
        yield lengths if lengths[-1] else lengths[:-1]


def compressed_runs(counts: list[int], size: Size) -> dict[str, Any]:
    """COCO's compressed form of `run_lengths`; needs pycocotools, the extra ``label``."""
    from pycocotools import mask as coco_mask

    packed: Any = coco_mask.frPyObjects({"size": list(size), "counts": counts}, *size)
    return {"size": list(size), "counts": packed["counts"].decode("ascii")}


def flat_points(outlined: Outlines) -> list[list[float]]:
    """x, y, x, y ... of each ring, to a hundredth of a pixel."""
    return [np.round(ring, 2).ravel().tolist() for ring in outlined.rings]


def object_annotation(segment: Segment, segmentation: Any = None) -> dict[str, Any]:
    """What COCO says of an object, but for its number and its picture's."""
    return {
        "category_id": segment.label,
        **({} if segmentation is None else {"segmentation": segmentation}),
        "area": segment.area,
        "bbox": list(segment.box),
        "iscrowd": 0,
        "score": round(segment.score, 4),
    }
