"""Attention times evidence: the ELBO pixel by pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pixalign.methods.elbo import Elbo


class Dense(Elbo):
    """Attention without exponents, vetoed where another class explains the picture better.

    Layers are divided by their means; those that agree with the evidence count more, and none is
    left out. `pixalign.alignment.evidence` has the rest.
    """

    name = "dense"
    calibrations = ("evidence",)
    defaults: ClassVar[Mapping[str, Any]] = {
        "cross_weights": "agreement",
        "agreement_floor": 0.2,
        "edges": "guided",
    }
