"""Where a network attends: one `Site` per attention layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from pixalign.core.values import Layers, Size

Kind = Literal["cross", "self", "joint"]
Place = Literal["down", "mid", "up", "joint"]


@dataclass(frozen=True, eq=False)
class Site:
    """An attention layer.

    A "cross" site maps image to text, a "self" site image to image, and a "joint" site image
    to [image; text] at once. One cell of its grid covers ``factor`` x ``factor`` latent
    positions.
    """

    module: nn.Module
    kind: Kind
    place: Place
    factor: int

    @property
    def reads_text(self) -> bool:
        """Whether the site has text columns."""
        return self.kind != "self"

    @property
    def reads_image(self) -> bool:
        """Whether the site has image columns."""
        return self.kind != "cross"

    def grid(self, latent: Size) -> Size:
        """(height, width) of the site's queries for a latent of that (height, width)."""
        return -(-latent[0] // self.factor), -(-latent[1] // self.factor)


def text_layers(sites: Sequence[Site]) -> Layers:
    """The layers among the sites that read text."""
    reading = [site for site in sites if site.reads_text]
    kinds = [f"{site.place}-{site.factor}" for site in reading]
    names = [f"{kind}-{kinds[: index + 1].count(kind)}" for index, kind in enumerate(kinds)]
    middle = [index for index, site in enumerate(reading) if site.place == "mid"]
    return Layers(
        names=tuple(names),
        factors=tuple(site.factor for site in reading),
        middle=sum(middle) / len(middle) if middle else (len(reading) - 1) / 2,
    )


def chosen_sites(
    sites: Iterable[Site], kind: str, *, mid: bool = True, factors: Collection[int] | None = None
) -> tuple[Site, ...]:
    """The "cross" or "self" layers, with or without the middle block, of some factors."""
    of_kind = [site for site in sites if site.kind == kind and (mid or site.place != "mid")]
    return tuple(site for site in of_kind if factors is None or site.factor in factors)


def nearest_factor(sites: Sequence[Site], factor: float) -> int:
    """The factor among the sites' that is nearest by ratio; of two, the finer."""
    there = sorted({site.factor for site in sites})
    if not there:
        raise ValueError(f"the model has no attention layer to stand for factor {factor:g}")
    # Rounded, so that a ratio of square roots is a tie where it should be.
    return min(there, key=lambda known: round(max(known, factor) / min(known, factor), 6))


def grid_factor(sites: Sequence[Site], latent: Size, side: int = 16) -> int:
    """The factor of the sites whose grid has most nearly ``side`` x ``side`` cells."""
    return nearest_factor(sites, math.sqrt(latent[0] * latent[1]) / side)
