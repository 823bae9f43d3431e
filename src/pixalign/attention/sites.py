"""Where a network attends: one `Site` per attention layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from pixalign.types import Size

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
