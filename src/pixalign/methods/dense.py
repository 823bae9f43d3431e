"""Attention times evidence: the ELBO pixel by pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pixalign.methods.elbo import Elbo


class Dense(Elbo):
    """Attention without exponents, vetoed where another class explains the picture better.

    All layers count alike, each divided by its mean; `pixalign.alignment.evidence` has the rest.
    """

    name = "dense"
    calibrations = ("evidence",)
    defaults: ClassVar[Mapping[str, Any]] = {"cross_weights": "balanced", "edges": "guided"}
