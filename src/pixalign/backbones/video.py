"""What networks share that draw videos: a picture is one frame, and a pass has many."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

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
    native: ClassVar[Size]  # (height, width) in pixels

    @property
    def native_size(self) -> Size:
        """That of its usual videos, unless the configuration says otherwise."""
        side = self.denoiser.config.get("sample_size")
        return self.native if side is None else (side * self.vae_factor, side * self.vae_factor)
