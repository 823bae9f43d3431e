"""Methods of aligning pixels and words: one class a file, one base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pixalign.backbones import FAMILIES, Backbone
from pixalign.config import FALLBACK, AlignConfig
from pixalign.core.checks import check_choice
from pixalign.methods.attention import Attention
from pixalign.methods.base import Method
from pixalign.methods.daam import Daam
from pixalign.methods.dense import Dense
from pixalign.methods.diffpng import DiffPng
from pixalign.methods.diffseg import DiffSeg
from pixalign.methods.diffsegmenter import DiffSegmenter
from pixalign.methods.elbo import Elbo
from pixalign.methods.likelihood import Likelihood
from pixalign.methods.ovam import Ovam, OvamOptimized

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Dense, Elbo, Attention, Likelihood,
        Daam, Ovam, OvamOptimized, DiffSegmenter, DiffSeg, DiffPng,
    )
}  # fmt: skip

__all__ = ["METHODS", "Method", "method_of", "resolve_config"]


def method_of(config: AlignConfig | None = None, name: str | None = None) -> type[Method]:
    """The method of that name, else the one that the config is made for, else the usual one."""
    if not isinstance(config, AlignConfig | None):
        raise ValueError(f"config is {config!r}; allowed: an AlignConfig, as AlignConfig.paper()")
    chosen = name or (config.method if config is not None else None) or FALLBACK["method"]
    check_choice("method", chosen, tuple(METHODS))
    return METHODS[chosen]


def resolve_config(
    config: AlignConfig | None,
    backbone: Backbone,
    settings: Mapping[str, Any],
    method: str | None = None,
    calibrate: str | None = None,
) -> AlignConfig:
    """A config as it is in force for a method on a model with those settings of its own."""
    kind, given = method_of(config, method), config or AlignConfig()
    for family in given.by_family:
        check_choice("a family in by_family", family, tuple(FAMILIES))
    configured = kind.configured(given, calibrate)
    told = {"distilled": backbone.distilled is not None}
    return configured.resolved(backbone.family, {**told, **settings})
