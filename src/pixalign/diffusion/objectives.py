"""The five training objectives (the paper's Table 1): every one is a weighted epsilon-error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pixalign.diffusion.schedule import Steps


def per_step(values: Tensor, like: Tensor) -> Tensor:
    """[T] values as [T, 1, ...] beside a tensor [T, ...], in float32 or that tensor's float64."""
    shaped = values.reshape(-1, *[1] * (like.ndim - 1))
    return shaped.to(like.device, torch.promote_types(like.dtype, torch.float32))


@dataclass(frozen=True)
class Objective:
    """One row of the paper's Table 1: the network estimates a x + b eps.

    ``coefficients(steps)`` are a and b, each [T]. With z = alpha x + sigma eps all else follows.
    """

    coefficients: Callable[[Steps], tuple[Tensor, Tensor]]

    def target(self, x: Tensor, eps: Tensor, steps: Steps) -> Tensor:
        """What the network estimates."""
        a, b = self.coefficients(steps)
        return per_step(a, x) * x + per_step(b, x) * eps

    def to_epsilon(self, output: Tensor, z: Tensor, steps: Steps) -> Tensor:
        """The network's output [T, ...] at z [T, ...] as an estimate of the noise."""
        a, _ = self.coefficients(steps)
        return (output - per_step(a / steps.alpha, z) * z) / per_step(self._slope(steps), z)

    def to_sample(self, output: Tensor, z: Tensor, steps: Steps) -> Tensor:
        """The network's output [T, ...] at z [T, ...] as an estimate of the clean latents."""
        _, b = self.coefficients(steps)
        scale = steps.alpha * self._slope(steps)
        return (per_step(b, z) * z - per_step(steps.sigma, z) * output) / per_step(scale, z)

    def omega(self, steps: Steps) -> Tensor:
        """[T]: the target's squared error divided by this is the ELBO's integrand."""
        return -(self._slope(steps) ** 2) / steps.lambda_slope

    def _slope(self, steps: Steps) -> Tensor:
        """[T]: by how much of the noise's error the output errs, at a given z."""
        a, b = self.coefficients(steps)
        return b - a * steps.sigma / steps.alpha


def _flow(s: Steps) -> tuple[Tensor, Tensor]:
    """alpha' and sigma', the latter from lambda' = 2 (alpha'/alpha - sigma'/sigma)."""
    return s.alpha_slope, s.sigma * (s.alpha_slope / s.alpha - s.lambda_slope / 2)


OBJECTIVES: dict[str, Objective] = {
    "epsilon": Objective(lambda s: (torch.zeros_like(s.alpha), torch.ones_like(s.alpha))),
    "velocity": Objective(lambda s: (-s.sigma, s.alpha)),
    "flow": Objective(_flow),
    "sample": Objective(lambda s: (torch.ones_like(s.alpha), torch.zeros_like(s.alpha))),
    "score": Objective(lambda s: (torch.zeros_like(s.alpha), -1 / s.sigma)),
}
