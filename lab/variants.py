"""The variants a study compares: whose attention, and which exponents calibrate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from lab.trial import Measured
from pixalign.alignment.calibrate import alignment_scores, weighted_elbo
from pixalign.alignment.calibrate import exponents as exponents_of
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax
from pixalign.scenes.labelled import LabelledScene

RANDOM_DRAWS = 5
GAMMAS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)  # 1 / gamma
CONSTANTS = (1.2, 1.5, 2.0, 3.0, 4.0)
STEPS = (1, 5, 10, 20, 30, 40)
STRATEGIES = (
    "random",
    "small",
    "middle",
    "large",
)  # of the ELBO's timesteps; "even" is the default
RANGES: dict[str, tuple[float, float]] = {
    "0-0.1": (0.0, 0.1),
    "0-0.2": (0.0, 0.2),
    "0.2-0.4": (0.2, 0.4),
    "0.4-0.6": (0.4, 0.6),
    "0.7-0.9": (0.7, 0.9),
    "0-1": (0.0, 1.0),
}

Exponents = Callable[[LabelledScene, Measured], Tensor]  # [N]


@dataclass(frozen=True)
class Variant:
    """Maps collected under ``maps``, weighted by its config, raised to ``exponents``.

    ``part`` is the table it belongs to.
    """

    name: str
    part: str
    maps: str
    exponents: Exponents


@dataclass(frozen=True)
class Plan:
    """The variants and the (resolved) configs of what they read."""

    variants: tuple[Variant, ...]
    collecting: dict[str, AlignConfig]
    scoring: dict[str, AlignConfig]


def plan(family: str, own: Mapping[str, Any], parts: tuple[str, ...]) -> Plan:
    """Every variant of the parts, for a model of that family with those settings of its own."""

    def config(preset: str = "default", **overrides: Any) -> AlignConfig:
        return AlignConfig.preset(preset, **overrides).resolved(family, own)

    default = config()
    collecting = {"own": default}
    scoring = {"20": default}
    variants = _main(default)
    if "main" in parts:
        collecting |= {"paper": config("paper"), "official": config("official")}
        scoring |= {"official": config("official")}
    variants += _gammas()
    if "sweeps" in parts:
        variants += _sweeps(default)
        collecting |= {name: config(collect_range=bounds) for name, bounds in RANGES.items()}
        collecting["random"] = config(collect_strategy="random")
        scoring |= {str(n): config(elbo_steps=n) for n in STEPS if n != default.elbo_steps}
        scoring |= {name: config(elbo_strategy=name) for name in STRATEGIES}
    wanted = tuple(v for v in variants if v.part in parts and v.maps in collecting)
    return Plan(wanted, collecting, scoring)


def _main(default: AlignConfig) -> list[Variant]:
    """Presets and controls; the controls at the default's strength and ("-3") at the paper's."""
    gamma, own = default.gamma, bool(default.centred)
    assert gamma is not None
    found = [
        Variant("uncalibrated", "main", "own", constant(1.0)),
        Variant("default", "main", "own", by_elbo(gamma, centred=own)),
        Variant("default-3", "main", "own", by_elbo(1 / 3)),
        Variant("paper", "main", "paper", by_elbo(1 / 3, weighting="likelihood")),
        Variant("official", "main", "official", by_elbo(1 / 3, "official")),
    ]
    for label, strength, centred in (("", gamma, own), ("-3", 1 / 3, False)):
        found += [
            Variant(f"random{label}:{draw}", "main", "own", shuffled(strength, draw, centred))
            for draw in range(RANDOM_DRAWS)
        ]
        turned = by_elbo(strength, turned=True, centred=centred)
        found.append(Variant(f"reversed{label}", "main", "own", turned))
        found.append(Variant(f"inverse{label}", "main", "own", inverse(strength, centred)))
    found += [Variant(f"constant-{c:g}", "main", "own", constant(c)) for c in CONSTANTS]
    return found


def _gammas() -> list[Variant]:
    found = [Variant(f"gamma-{g:g}", "gamma", "own", by_elbo(1 / g)) for g in GAMMAS]
    return found + [
        Variant(f"centred-{g:g}", "gamma", "own", by_elbo(1 / g, centred=True)) for g in GAMMAS
    ]


def _sweeps(default: AlignConfig) -> list[Variant]:
    """The ELBO's timesteps and weighting, and where attention is collected."""
    gamma, own = default.gamma, bool(default.centred)
    assert gamma is not None
    found: list[Variant] = []

    def add(name: str, maps: str, exponents: Exponents) -> None:
        found.append(Variant(name, "sweeps", maps, exponents))

    for label, strength, centred in (("", gamma, own), ("-3", 1 / 3, False)):
        for n in STEPS:
            add(f"steps-{n}{label}", "own", by_elbo(strength, str(n), centred=centred))
        for name in STRATEGIES:
            add(f"strategy-{name}{label}", "own", by_elbo(strength, name, centred=centred))
        likelihood = by_elbo(strength, weighting="likelihood", centred=centred)
        add(f"weighting-likelihood{label}", "own", likelihood)
    for name in (*RANGES, "random"):
        add(f"collect-{name}", name, constant(1.0))
        add(f"collect-{name}:calibrated", name, by_elbo(gamma, centred=own))
    return found


def elbo_of(measured: Measured, steps: str = "20", weighting: str = "uniform") -> Tensor:
    """float64 [N]: the ELBO of each class."""
    weights = measured.steps[steps].weights(weighting, "epsilon")
    return weighted_elbo(measured.losses[steps], weights)


def constant(power: float) -> Exponents:
    """The same exponent for every class."""
    return lambda subject, measured: torch.full((len(subject.labels),), power)


def by_elbo(
    gamma: float,
    steps: str = "20",
    weighting: str = "uniform",
    *,
    turned: bool = False,
    centred: bool = False,
) -> Exponents:
    """1 / S; ``turned``: of 1 - norm; ``centred``: divided by their geometric mean."""

    def exponents(subject: LabelledScene, measured: Measured) -> Tensor:
        bounds = elbo_of(measured, steps, weighting)
        return exponents_of(alignment_scores(-bounds if turned else bounds, gamma), centred)

    return exponents


def inverse(gamma: float, centred: bool = False) -> Exponents:
    """S itself: the wrong way round."""
    straight = by_elbo(gamma, centred=centred)
    return lambda subject, measured: 1 / straight(subject, measured)


def shuffled(gamma: float, draw: int, centred: bool = False) -> Exponents:
    """The image's own exponents, each given to another class or the same, at random."""
    straight = by_elbo(gamma, centred=centred)

    def exponents(subject: LabelledScene, measured: Measured) -> Tensor:
        powers = straight(subject, measured)
        generator = torch.Generator().manual_seed(1_000_003 * draw + subject.number)
        return powers[torch.randperm(len(powers), generator=generator)]

    return exponents


def every_order(powers: Tensor) -> Tensor:
    """[N!, N]: the exponents in every order, as they are first."""
    return torch.stack([powers[list(order)] for order in permutations(range(len(powers)))])


def strength(bounds: Tensor) -> Tensor:
    """norm of the ELBO in [0, 1]: 0 for the class that explains the image best."""
    return minmax(bounds, (0,))
