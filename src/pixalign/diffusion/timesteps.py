"""Which points of a schedule are taken, and how they count."""

from __future__ import annotations

import torch
from torch import Tensor

from pixalign.core.checks import check_choice

# Each strategy's part of [0, 1]; "random" is drawn uniformly, the others are midpoints.
STRATEGIES: dict[str, tuple[float, float]] = {
    "even": (0.0, 1.0),
    "random": (0.0, 1.0),
    "small": (0.0, 0.2),
    "middle": (0.4, 0.6),
    "large": (0.7, 0.9),
}
WEIGHTINGS = ("uniform", "likelihood", "native")


def positions(
    strategy: str,
    count: int,
    bounds: tuple[float, float] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``count`` float64 points of [0, 1]: midpoints of the strategy's range, or random ones."""
    check_choice("strategy", strategy, tuple(STRATEGIES))
    low, high = bounds or STRATEGIES[strategy]
    if strategy == "random":
        device = "cpu" if generator is None else generator.device
        unit = torch.rand(count, generator=generator, device=device).double().cpu()
    else:
        unit = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return low + unit * (high - low)
