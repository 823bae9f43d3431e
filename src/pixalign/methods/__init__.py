"""Other methods of aligning pixels and words, with the signature of `Aligner.align`."""

from __future__ import annotations

from typing import Any

from pixalign.alignment.aligner import Aligner
from pixalign.core.checks import check_choice
from pixalign.methods.base import Method
from pixalign.methods.daam import Daam
from pixalign.methods.diffpng import DiffPng
from pixalign.methods.diffseg import DiffSeg
from pixalign.methods.diffsegmenter import DiffSegmenter
from pixalign.methods.ovam import Ovam, OvamOptimized

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
    check_choice("method", name, tuple(METHODS))
    return METHODS[name](aligner, **options)
