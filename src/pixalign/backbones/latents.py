"""Pictures as a pipeline's VAE has them: encoding and decoding, in float32."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from pixalign.core.checks import check_finite

_PIECEWISE = re.compile("use_(tiling|slicing)|tile_")  # what a VAE calls such settings
_DECODED = 2**20  # pixels of the pictures that are decoded together: four of 512 x 512


class LatentCodec:
    """A pipeline's VAE between pixels and the latents that its network is shown."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self._vae: Any = None  # a float32 copy, once it is needed
        self._known_dtype: Any = None

    @property
    def device(self) -> torch.device:
        """Where the pipeline computes, also when its parts are offloaded meanwhile."""
        device: torch.device = self.pipe._execution_device
        return device

    @property
    def vae_factor(self) -> int:
        """Pixels on one side of a latent position."""
        return int(self.pipe.vae_scale_factor)

    @torch.no_grad()
    def encode_image(self, pixels: Tensor) -> Tensor:
        """Latents float32 [1, C, h, w] of pixels [1, 3, H, W] in [-1, 1]: the posterior mean."""
        vae, dtype = self._float32_vae()
        encoded = self._encoded(vae, pixels.to(self.device, dtype)).float()
        shift, factor = (x.to(encoded) for x in self._latent_statistics(vae))
        latents: Tensor = (encoded - shift) * factor
        check_finite(latents, "latents of the VAE", torch.float32)
        return latents

    def _encoded(self, vae: Any, pixels: Tensor) -> Tensor:
        """The VAE's posterior mean [1, C, h, w], as it has it."""
        posterior = vae.encode(pixels)
        if not hasattr(posterior, "latent_dist"):
            raise ValueError(f"a {type(vae).__name__} has no posterior; use the model's own VAE")
        mean: Tensor = posterior.latent_dist.mode()
        return mean

    def _decoded(self, vae: Any, latents: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1] of latents as the VAE has them."""
        pixels: Tensor = vae.decode(latents)[0]
        return pixels

    def _latent_statistics(self, vae: Any) -> tuple[Tensor, Tensor]:
        """What is taken from the VAE's latents, and what they are multiplied by: [1, C or 1, 1, 1].

        From its configuration: scale, shift, or a mean and a spread for each channel.
        """
        config = vae.config
        numbers = {
            name: torch.tensor(config.get(name) or usual, dtype=torch.float32).reshape(1, -1, 1, 1)
            for name, usual in (("latents_mean", 0.0), ("latents_std", 1.0))
        }
        shift = numbers["latents_mean"] + (config.get("shift_factor") or 0.0)
        return shift, (config.get("scaling_factor") or 1.0) / numbers["latents_std"]

    @torch.no_grad()
    def decode_latents(self, latents: Tensor) -> Tensor:
        """Pictures float32 [B, 3, H, W] in [0, 1] of latents [B, C, h, w], large ones singly."""
        vae, dtype = self._float32_vae()
        shift, factor = (x.to(latents) for x in self._latent_statistics(vae))
        scaled = latents / factor + shift
        together = max(1, _DECODED // (scaled[0, 0].numel() * self.vae_factor**2))
        parts = torch.split(scaled, together)
        pixels = torch.cat([self._decoded(vae, part.to(dtype)).float() for part in parts])
        check_finite(pixels, "pictures of the VAE", torch.float32)
        return (pixels / 2 + 0.5).clamp(0, 1)

    def _vae_dtype(self) -> torch.dtype:
        """The pipeline's VAE's; diffusers, who walks through all modules, is asked on changes."""
        vae = self.pipe.vae
        state = vae, next(vae.parameters()).dtype
        if self._known_dtype is None or self._known_dtype[0] != state:
            self._known_dtype = state, vae.dtype
        dtype: torch.dtype = self._known_dtype[1]
        return dtype

    def _float32_vae(self) -> tuple[Any, torch.dtype]:
        """The pipeline's VAE, or a float32 copy of it: half precision overflows in some.

        And its number type, which is another under sequential offloading.
        """
        vae, dtype = self.pipe.vae, self._vae_dtype()
        if dtype == torch.float32 or any(weight.is_meta for weight in vae.parameters()):
            return vae, dtype
        if self._vae is None:
            weights = vae.state_dict()
            device = self.device  # asking walks through the whole pipeline
            with torch.device("meta"):
                copy = type(vae).from_config(vae.config)
            kept = {name: weights[name].to(device, torch.float32) for name in copy.state_dict()}
            copy.load_state_dict(kept, assign=True)
            self._vae = copy.eval()
        # As the pipeline's own does now, it works in tiles and slices or not.
        vars(self._vae).update({k: v for k, v in vars(vae).items() if _PIECEWISE.match(k)})
        return self._vae, torch.float32
