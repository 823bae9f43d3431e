"""Attention alone: Algorithm 1 without the ELBO (lines 3 and 7)."""

from __future__ import annotations

from pixalign.methods.elbo import Elbo


class Attention(Elbo):
    """The maps as the network has them: every class keeps its own."""

    name = "attention"
    calibrations = ("none",)
