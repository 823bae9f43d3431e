"""Alignment scores and what they do to attention maps. Pure functions of tensors."""

from __future__ import annotations

from torch import Tensor

from pixalign.core.maps import minmax


def weighted_elbo(losses: Tensor, weights: Tensor) -> Tensor:
    """float64 [N]: the weighted mean over timesteps of losses [N, T], weights [T] summing to 1."""
    return losses.double() @ weights.double()


def alignment_scores(elbo: Tensor, gamma: float) -> Tensor:
    """S = gamma ** norm(elbo) (Eq. 5) over the classes of elbo [N, ...]: float32 in [gamma, 1].

    The class with the lowest loss scores 1 and the one with the highest gamma. Equal losses,
    and a single class, score 1.
    """
    norm = minmax(elbo.double(), (0,))
    return (gamma**norm).clamp(gamma, 1.0).float()


def exponents(scores: Tensor, centred: bool = False) -> Tensor:
    """The powers 1 / S for scores [N, ...]; ``centred`` divides them by their geometric mean.

    Raised to the powers of line 7 every map is sharpened, or kept. Centred, the strong classes'
    maps are softened as the weak ones' are sharpened: only the order of the losses acts.
    """
    powers = 1 / scores
    return powers / powers.log().mean(0, keepdim=True).exp() if centred else powers


def calibrate(maps: Tensor, exponents: Tensor) -> Tensor:
    """A <- minmax(A) ** (1 / S) (lines 6 and 7) for maps [N, h, w], exponents [N]."""
    return minmax(maps, (1, 2)) ** exponents[:, None, None].to(maps)
