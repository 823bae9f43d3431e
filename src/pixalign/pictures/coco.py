"""An object as COCO writes it: its runs of pixels, or its polygons."""

from __future__ import annotations

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


def run_lengths(segments_map: NDArray[np.uint16], segment: Segment) -> list[int]:
    """How many pixels are outside, inside, outside ... a segment, down one column after another.

    They add up to the number of pixels; the first may be 0.
    """
    height, width = segments_map.shape
    columns = np.pad(cropped(segments_map, segment).T, ((0, 0), (1, 1))).astype(np.int8)
    column, row = np.nonzero(np.diff(columns))  # by columns, in each a start and then an end
    changes = (column + segment.box[0]) * height + row + segment.box[1]
    touching = np.flatnonzero(np.diff(changes) == 0)  # an end that is the next column's start
    changes = np.delete(changes, np.concatenate([touching, touching + 1]))
    lengths = np.diff(changes, prepend=0, append=height * width)
    return [int(length) for length in (lengths if lengths[-1] else lengths[:-1])]


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
