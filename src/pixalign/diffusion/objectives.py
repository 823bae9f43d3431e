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
    """One row of the paper's Table 1: at z = alpha x + sigma eps the network estimates a x + b eps.

    ``coefficients(steps)`` are a and b, each [T]. ``to_epsilon(out, z, steps)`` solves this for
    epsilon, in the form that rounds least.
    """

    coefficients: Callable[[Steps], tuple[Tensor, Tensor]]
    to_epsilon: Callable[[Tensor, Tensor, Steps], Tensor]

    def target(self, x: Tensor, eps: Tensor, steps: Steps) -> Tensor:
        """What the network estimates."""
        a, b = self.coefficients(steps)
        return per_step(a, x) * x + per_step(b, x) * eps

    def to_sample(self, output: Tensor, z: Tensor, steps: Steps) -> Tensor:
        """The network's output [T, ...] at z [T, ...] as an estimate of the clean latents."""
        a, b = self.coefficients(steps)
        scale = b * steps.alpha - a * steps.sigma
        return (per_step(b, z) * z - per_step(steps.sigma, z) * output) / per_step(scale, z)

    def omega(self, steps: Steps) -> Tensor:
        """[T]: the target's squared error divided by this is the ELBO's integrand."""
        a, b = self.coefficients(steps)
        return -((b - a * steps.sigma / steps.alpha) ** 2) / steps.lambda_slope


def _flow(s: Steps) -> tuple[Tensor, Tensor]:
    """alpha' and sigma', the latter from lambda' = 2 (alpha'/alpha - sigma'/sigma)."""
    return s.alpha_slope, s.sigma * (s.alpha_slope / s.alpha - s.lambda_slope / 2)


OBJECTIVES: dict[str, Objective] = {
    "epsilon": Objective(
        lambda s: (torch.zeros_like(s.alpha), torch.ones_like(s.alpha)),
        to_epsilon=lambda out, z, s: out,
    ),
    "velocity": Objective(
        lambda s: (-s.sigma, s.alpha),
        to_epsilon=lambda out, z, s: (
            (per_step(s.alpha, z) * out + per_step(s.sigma, z) * z)
            / per_step(s.alpha**2 + s.sigma**2, z)
        ),
    ),
    "flow": Objective(
        _flow,
        to_epsilon=lambda out, z, s: (
            (out - per_step(s.alpha_slope / s.alpha, z) * z)
            / per_step(-s.sigma * s.lambda_slope / 2, z)
        ),
    ),
    "sample": Objective(
        lambda s: (torch.ones_like(s.alpha), torch.zeros_like(s.alpha)),
        to_epsilon=lambda out, z, s: (z - per_step(s.alpha, z) * out) / per_step(s.sigma, z),
    ),
    "score": Objective(
        lambda s: (torch.zeros_like(s.alpha), -1 / s.sigma),
        to_epsilon=lambda out, z, s: -per_step(s.sigma, z) * out,
    ),
}
