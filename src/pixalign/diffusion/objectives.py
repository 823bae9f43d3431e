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
    """One row of the paper's Table 1.

    ``target(x, eps, steps)`` is what the network estimates; ``to_epsilon(out, z, steps)`` and
    ``to_sample(out, z, steps)`` solve that for epsilon and for x; ``omega(steps)`` makes
    target-error / omega the ELBO integrand.
    """

    target: Callable[[Tensor, Tensor, Steps], Tensor]
    to_epsilon: Callable[[Tensor, Tensor, Steps], Tensor]
    to_sample: Callable[[Tensor, Tensor, Steps], Tensor]
    omega: Callable[[Steps], Tensor]


def _sigma_slope(s: Steps) -> Tensor:
    """From lambda' = 2 (alpha'/alpha - sigma'/sigma)."""
    return s.sigma * (s.alpha_slope / s.alpha - s.lambda_slope / 2)


OBJECTIVES: dict[str, Objective] = {
    "epsilon": Objective(
        target=lambda x, eps, s: eps,
        to_epsilon=lambda out, z, s: out,
        to_sample=lambda out, z, s: (z - per_step(s.sigma, z) * out) / per_step(s.alpha, z),
        omega=lambda s: -1 / s.lambda_slope,
    ),
    "velocity": Objective(
        target=lambda x, eps, s: per_step(s.alpha, x) * eps - per_step(s.sigma, x) * x,
        to_epsilon=lambda out, z, s: (
            (per_step(s.alpha, z) * out + per_step(s.sigma, z) * z)
            / per_step(s.alpha**2 + s.sigma**2, z)
        ),
        to_sample=lambda out, z, s: (
            (per_step(s.alpha, z) * z - per_step(s.sigma, z) * out)
            / per_step(s.alpha**2 + s.sigma**2, z)
        ),
        omega=lambda s: -((s.alpha**2 + s.sigma**2) ** 2) / (s.alpha**2 * s.lambda_slope),
    ),
    "flow": Objective(
        target=lambda x, eps, s: (
            per_step(s.alpha_slope, x) * x + per_step(_sigma_slope(s), x) * eps
        ),
        to_epsilon=lambda out, z, s: (
            (out - per_step(s.alpha_slope / s.alpha, z) * z)
            / per_step(-s.sigma * s.lambda_slope / 2, z)
        ),
        to_sample=lambda out, z, s: (
            (per_step(_sigma_slope(s), z) * z - per_step(s.sigma, z) * out)
            / per_step(-s.alpha * s.sigma * s.lambda_slope / 2, z)
        ),
        omega=lambda s: -(s.sigma**2) * s.lambda_slope / 4,
    ),
    "sample": Objective(
        target=lambda x, eps, s: x,
        to_epsilon=lambda out, z, s: (z - per_step(s.alpha, z) * out) / per_step(s.sigma, z),
        to_sample=lambda out, z, s: out,
        omega=lambda s: -(s.sigma**2) / (s.alpha**2 * s.lambda_slope),
    ),
    "score": Objective(
        target=lambda x, eps, s: -eps / per_step(s.sigma, x),
        to_epsilon=lambda out, z, s: -per_step(s.sigma, z) * out,
        to_sample=lambda out, z, s: (z + per_step(s.sigma**2, z) * out) / per_step(s.alpha, z),
        omega=lambda s: -1 / (s.sigma**2 * s.lambda_slope),
    ),
}


def to_epsilon(objective: str, output: Tensor, z: Tensor, steps: Steps) -> Tensor:
    """The network's output [T, ...] at z [T, ...] as an estimate of the noise."""
    return OBJECTIVES[objective].to_epsilon(output, z, steps)


def to_sample(objective: str, output: Tensor, z: Tensor, steps: Steps) -> Tensor:
    """The network's output [T, ...] at z [T, ...] as an estimate of the clean latents."""
    return OBJECTIVES[objective].to_sample(output, z, steps)
