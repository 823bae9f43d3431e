"""What networks share that draw videos: a picture is one frame, and a pass has many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from pixalign.attention import Site
from pixalign.attention.sites import Kind
from pixalign.backbones.latents import LatentCodec
from pixalign.backbones.transformer import FlowTransformer
from pixalign.core.values import Size


class FrameCodec(LatentCodec):
    """A VAE of videos, for pictures as videos of one frame."""

    def _encoded(self, vae: Any, pixels: Tensor) -> Tensor:
        return super()._encoded(vae, pixels[:, :, None])[:, :, 0]

    def _decoded(self, vae: Any, latents: Tensor) -> Tensor:
        return super()._decoded(vae, latents[:, :, None])[:, :, 0]


class VideoTransformer(FrameCodec, FlowTransformer):
    """A transformer of videos whose cross-attention reads the text.

    The frames of a pass stand below one another in its latents' height and in its layers' grids.
    """

    packed = False
    blocks: ClassVar[str]  # the list in which they stand
    native: ClassVar[Size]  # (height, width) in pixels

    def _sites(self) -> tuple[Site, ...]:
        kinds: tuple[tuple[str, Kind], ...] = (("attn1", "self"), ("attn2", "cross"))
        return tuple(
            Site(getattr(block, name), kind, "joint", self.patch)
            for block in getattr(self.denoiser, self.blocks)
            for name, kind in kinds
        )

    @property
    def native_size(self) -> Size:
        """That of its usual videos, unless the configuration says otherwise."""
        side = self.denoiser.config.get("sample_size")
        return self.native if side is None else (side * self.vae_factor, side * self.vae_factor)

    def call_order(self, named: Mapping[str, Any], latent: Size, texts: Sequence[Tensor]) -> None:
        """No layer reads video and text at once."""

    def order(self, latent: Size, text: int) -> None:
        """No layer reads picture and text at once."""
