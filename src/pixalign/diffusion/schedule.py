"""Noise schedules, the five training objectives, and which timesteps are visited.

Notation as in the paper: z_t = alpha_t x + sigma_t eps and lambda(t) = 2 ln(alpha_t / sigma_t).
Every objective is a weighted epsilon-error, so one path serves all: turn the network's output
into an epsilon estimate (`Objective.to_epsilon`), square its error, weight it (`Steps.weights`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.core.checks import check_choice
from pixalign.diffusion.objectives import OBJECTIVES, per_step
from pixalign.diffusion.timesteps import WEIGHTINGS


@dataclass(frozen=True)
class Steps:
    """T points of a schedule; every field is float64 [T].

    ``time`` is what the network is told. Slopes are derivatives by t in [0, 1].
    """

    time: Tensor
    alpha: Tensor
    sigma: Tensor
    alpha_slope: Tensor
    lambda_slope: Tensor

    def __len__(self) -> int:
        return len(self.time)

    def __getitem__(self, index: Tensor) -> Steps:
        """The steps of those indices, repeats allowed."""
        return Steps(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Steps]) -> Steps:
        """All steps of the parts, in order."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def noised(self, latents: Tensor, noise: Tensor) -> Tensor:
        """z_t (Eq. 1) of latents [1 or T, C, h, w] under noise [T, C, h, w], one per step."""
        alpha, sigma = (per_step(x, noise) for x in (self.alpha, self.sigma))
        return alpha * latents + sigma * noise

    def log_snr(self) -> Tensor:
        """lambda = 2 ln(alpha / sigma), [T]."""
        return 2 * (self.alpha / self.sigma).log()

    def weights(self, weighting: str, objective: str) -> Tensor:
        """[T] weights of the squared epsilon-error, summing to 1.

        "uniform" counts every step alike, "likelihood" is Eq. 2's -lambda'(t), and "native"
        is the loss the network was trained with.
        """
        check_choice("weighting", weighting, WEIGHTINGS)
        weights = torch.ones_like(self.time) if weighting == "uniform" else -self.lambda_slope
        if weighting == "native":
            weights = weights * OBJECTIVES[objective].omega(self)
        return weights / weights.sum()


@dataclass(frozen=True)
class SamplingPath:
    """The way from noise to a picture in T steps, noisiest first; step i leads to ``ends[i]``."""

    steps: Steps
    ends: Steps

    def __len__(self) -> int:
        return len(self.steps)

    def at(self, index: int, count: int) -> Steps:
        """Step ``index`` for each of ``count`` latents."""
        return self.steps[torch.full((count,), index)]

    def advance(
        self, objective: str, output: Tensor, z: Tensor, index: int, *, backwards: bool = False
    ) -> Tensor:
        """From z [B, ...] at step ``index`` to its end, or from its end backwards to the step.

        z' = alpha' x + sigma' eps with the estimates of x and eps: DDIM without noise, and on the
        straight path of a flow Euler's method. ``output`` is what the network says to z when it is
        told the step's own time. A flow's holds all along the way, also backwards; any other is
        relative to that time, where it tells the noise.
        """
        rows = torch.full((len(z),), index)
        here, there, row = self.steps[rows], self.ends[rows], OBJECTIVES[objective]
        if backwards:
            if objective != "flow":
                output, row = row.to_epsilon(output, z, here), OBJECTIVES["epsilon"]
            here, there = there, here
        return there.noised(row.to_sample(output, z, here), row.to_epsilon(output, z, here))


class DiscreteSchedule:
    """The variance-preserving schedule of SD1, SD2 and SDXL: a table over training steps."""

    def __init__(self, alphas_cumprod: Tensor, time: Tensor | None = None) -> None:
        """``alphas_cumprod`` [T]: alpha_t squared, falling from nearly 1 towards 0.

        ``time`` float64 [T] is what the network is told, by default the step's index.
        """
        # A zero terminal signal-to-noise ratio would make lambda infinite.
        signal = alphas_cumprod.double().cpu().clamp(1e-12, 1 - 1e-12)
        log_snr = torch.log(signal) - torch.log1p(-signal)
        self.table = Steps(
            time=torch.arange(len(signal)).double() if time is None else time,
            alpha=signal.sqrt(),
            sigma=(1 - signal).sqrt(),
            alpha_slope=torch.gradient(signal.sqrt(), spacing=1 / len(signal))[0],
            lambda_slope=torch.gradient(log_snr, spacing=1 / len(signal))[0],
        )

    @property
    def length(self) -> int:
        """How many training steps there are."""
        return len(self.table)

    def path(self, count: int) -> SamplingPath:
        """999, 979, ..., 19 for 50 of 1,000 steps; the last leads to training step 0."""
        check_count(count, self.length)
        starts = [round(self.length * (1 - step / count)) - 1 for step in range(count)]
        return SamplingPath(self.at_indices(starts), self.at_indices([*starts[1:], 0]))

    def at_positions(self, positions: Tensor) -> Steps:
        """The training steps nearest to the positions in [0, 1]."""
        nearest = (positions.double() * self.length).round().long().clamp(0, self.length - 1)
        return self.at_indices(nearest.tolist())

    def at_indices(self, indices: Sequence[int]) -> Steps:
        """The training steps of those indices."""
        _check_indices(indices, self.length)
        return self.table[torch.tensor(indices)]


class FlowSchedule:
    """The straight path of SD3: alpha = 1 - t, sigma = t, the network is told 1000 t."""

    def __init__(self, shift: float = 1.0, length: int = 1000) -> None:
        self.shift, self.length = shift, length

    def path(self, count: int) -> SamplingPath:
        """diffusers' sigmas: evenly from 1 to the smallest of training, shifted, and then 0."""
        check_count(count, self.length)
        lowest = self._shifted(torch.tensor(1 / self.length, dtype=torch.float64))
        even = torch.linspace(1.0, float(lowest), count, dtype=torch.float64)
        return self.along(torch.cat([self._shifted(even), torch.zeros(1, dtype=torch.float64)]))

    def along(self, sigmas: Tensor) -> SamplingPath:
        """From each of some noise levels float64 [T + 1] to the next."""
        return SamplingPath(self._near(sigmas[:-1], 1e-6), self._near(sigmas[1:], 1e-6))

    def at_positions(self, positions: Tensor) -> Steps:
        """t = position. lambda' = -2 / (t (1 - t)) is infinite at both ends, so t stays inside."""
        return self._near(positions.double().clamp(1e-4, 1 - 1e-4), 0.0)

    def _near(self, t: Tensor, margin: float) -> Steps:
        """Steps at t; all but the time that the network is told stays ``margin`` from both ends."""
        inside = t.clamp(margin, 1 - margin)
        return Steps(
            time=t * self.length,
            alpha=1 - inside,
            sigma=inside,
            alpha_slope=-torch.ones_like(t),
            lambda_slope=-2 / (inside * (1 - inside)),
        )

    def _shifted(self, s: Tensor) -> Tensor:
        return self.shift * s / (1 + (self.shift - 1) * s)

    def at_indices(self, indices: Sequence[int]) -> Steps:
        """Indices into the scheduler's shifted table of sigmas, lowest first."""
        _check_indices(indices, self.length)
        s = (torch.tensor(indices).double() + 1) / self.length
        return self.at_positions(self._shifted(s))


Schedule = DiscreteSchedule | FlowSchedule


def _check_indices(indices: Sequence[int], length: int) -> None:
    if not indices or min(indices) < 0 or max(indices) >= length:
        raise ValueError(f"timesteps {list(indices)} do not all lie in 0..{length - 1}")


def check_count(count: int, length: int) -> None:
    """Raise a ValueError unless a path of so many steps can be taken."""
    if not 1 <= count <= length:
        raise ValueError(f"steps is {count}; allowed: 1 to {length}")
