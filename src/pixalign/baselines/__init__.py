"""Other methods of aligning pixels and words, with the signature of `Aligner.align`."""

from __future__ import annotations

from typing import Any

from pixalign.align import Aligner
from pixalign.baselines.base import Method
from pixalign.baselines.daam import Daam
from pixalign.baselines.diffpng import DiffPng
from pixalign.baselines.diffseg import DiffSeg
from pixalign.baselines.diffsegmenter import DiffSegmenter
from pixalign.baselines.ovam import Ovam, OvamOptimized
from pixalign.types import allowed

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Daam, Ovam, OvamOptimized, DiffSegmenter, DiffSeg, DiffPng)
}

__all__ = [
    "METHODS",
    "Daam",
    "DiffPng",
    "DiffSeg",
    "DiffSegmenter",
    "Method",
    "Ovam",
    "OvamOptimized",
    "method",
]


def method(name: str, aligner: Aligner, **options: Any) -> Method:
    """The method of that name on an aligner's model; ``options`` are its constructor's."""
    allowed("method", name, tuple(METHODS))
    return METHODS[name](aligner, **options)
