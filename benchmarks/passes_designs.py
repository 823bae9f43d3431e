"""Which passes the rows of benchmarks/passes.py make: texts at noised timesteps.

A design says which texts are asked at a point (`texts`) and, of the errors [K, C, h, w] under them,
estimates minus noise, what r [1 or N, C, h, w] and d [N, C, h, w] of `TextErrors` are (`parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pixalign as pa
from pixalign.alignment.elbo import EMPTY
from pixalign.core.values import Phrase
from pixalign.diffusion.timesteps import positions
from pixalign.text.prompts import canonical_order, compose

FAST = pa.AlignConfig.fast(method="dense", edges="none")


@dataclass(frozen=True)
class Point:
    """A place in the schedule, and which of the scene's noises is added there, or taken away."""

    place: float
    noise: int
    sign: int = 1


@dataclass(frozen=True)
class Names:
    """A scene's classes, the text of each alone, and the seed of the rest."""

    phrases: tuple[Phrase, ...]
    each: tuple[str, ...]
    seed: int = 0

    def together(self, which: Callable[[int], Any] = lambda index: True) -> str:
        """The text of all classes, or of some; the empty one if there are none."""
        chosen = list(filter(which, canonical_order(self.phrases)))
        return compose(self.phrases, chosen, FAST.template).text if chosen else EMPTY


@dataclass(frozen=True)
class Beside:
    """Each class alone: r = target - base, d_i = class i - origin, the origin being the base if
    none is named. The default is the method's: N + 1 passes.

    "noise" is the true one, "mean" the mean of the classes' estimates, which costs no pass.
    """

    base: str = "empty"
    origin: str = ""
    target: str = "noise"

    def texts(self, names: Names, point: Point) -> list[str]:  # noqa: D102
        known = {"empty": EMPTY, "all": names.together()}
        further = dict.fromkeys((self.base, self.origin, self.target))
        return [*names.each, *(known[what] for what in further if what in known)]

    def parts(self, errors: Tensor, names: Names, point: Point) -> tuple[Tensor, Tensor]:  # noqa: D102
        each, count = errors[: len(names.each)], len(names.each)
        known = {"noise": torch.zeros_like(each[:1]), "mean": each.mean(0, keepdim=True)}
        further = [x for x in dict.fromkeys((self.base, self.origin, self.target)) if x]
        for what in (x for x in further if x not in known):
            known[what], count = errors[count : count + 1], count + 1
        return known[self.target] - known[self.base], each - known[self.origin or self.base]


@dataclass(frozen=True)
class LeaveOneOut:
    """d_i = all classes - all but i; r of "each" of the latter, of "all", or of the "empty" text,
    which costs a pass more than N + 1."""

    missed: str

    def texts(self, names: Names, point: Point) -> list[str]:  # noqa: D102
        rest = [names.together(lambda i, out=n: i != out) for n in range(len(names.each))]
        return [names.together(), *rest, *([EMPTY] * (self.missed == "empty"))]

    def parts(self, errors: Tensor, names: Names, point: Point) -> tuple[Tensor, Tensor]:  # noqa: D102
        rest = errors[1 : 1 + len(names.each)]
        missed = {"each": rest, "all": errors[:1], "empty": errors[-1:]}[self.missed]
        return -missed, errors[:1] - rest


@dataclass(frozen=True)
class Halves:
    """Group tests: K texts a point that hold random halves of the classes, in opposite pairs.

    d_i is the mean of the texts with class i minus that of those without it; r is of the mean of
    all. "orthogonal" halves are rows of a Hadamard matrix, so that over as many points each two
    classes are as often together as apart. With "solve" the projections of random ones are those
    of least squares over all points.
    """

    count: int
    how: str = "random"

    def signs(self, names: Names, point: Point) -> Tensor:
        """float32 [K, N]: 1 where a text holds a class, else -1."""
        rng, size = np.random.default_rng([names.seed, point.noise]), len(names.each)
        if self.how == "orthogonal":
            order = 1 << (size - 1).bit_length()
            columns = np.random.default_rng(names.seed).permutation(order)[:size]
            common = columns & (1 + point.noise % (order - 1))
            signs = torch.tensor([[1.0 - 2 * (int(x).bit_count() % 2) for x in common]])
            return torch.cat([signs, -signs])
        ranks = np.stack([rng.permutation(size) for _ in range(self.count // 2)])
        signs = torch.from_numpy(np.where(ranks < size // 2, 1.0, -1.0)).float()
        return torch.cat([signs, -signs])

    def texts(self, names: Names, point: Point) -> list[str]:  # noqa: D102
        held = (self.signs(names, point) > 0).tolist()
        return [names.together(row.__getitem__) for row in held]

    def parts(self, errors: Tensor, names: Names, point: Point) -> tuple[Tensor, Tensor]:  # noqa: D102
        signs = self.signs(names, point)
        added = torch.einsum("kn,kchw->nchw", signs, errors) * 2 / len(signs)
        return -errors.mean(0, keepdim=True), added

    def solved(self, names: Names, points: Sequence[Point], projections: Tensor) -> Tensor:
        """Projections [N, T, h, w] without what other classes of the same texts added."""
        signs = torch.cat([self.signs(names, point) for point in points])
        inverse = torch.linalg.pinv(signs.T @ signs / len(signs))
        return torch.einsum("mn,nthw->mthw", inverse, projections)


Design = Beside | LeaveOneOut | Halves


@dataclass(frozen=True)
class Variant:
    """A row: what is asked, at which points, and how far the evidence is blurred."""

    points: tuple[Point, ...]
    design: Design = Beside()
    group: str = "timesteps"
    blur: float = FAST.evidence_blur

    def passes(self, count: int) -> int:
        """With so many classes."""
        each = tuple(f"class {n}" for n in range(count))
        names = Names(tuple(map(Phrase, each)), each)
        return sum(len(self.design.texts(names, point)) for point in self.points)


def spread(count: int, low: float = 0.2, high: float = 0.8, first: int = 0) -> tuple[Point, ...]:
    """Midpoints of a range, each with a noise of its own from a number on."""
    places = positions("even", count, (low, high)).tolist()
    return tuple(Point(round(place, 6), first + n) for n, place in enumerate(places))


NOW = "5 in [0.2, 0.8]"
BASE, GRID = spread(5), spread(20, 0, 1)
_RANGES = ((0.0, 0.5), (0.1, 0.6), (0.2, 0.7), (0.2, 0.8), (0.3, 0.9), (0.4, 1.0), (0.0, 1.0))
_FEWER = {4: ((0.2, 0.7), (0.2, 0.8)), 3: ((0.2, 0.7), (0.2, 0.8), (0.3, 0.7))}
_THREE = spread(3)
_SPREAD = {
    f"{n} x 2 halves{said}": Variant(spread(n), Halves(2, how), "halves")
    for n in (10, 20)
    for said, how in (("", "random"), (", orthogonal", "orthogonal"))
}
VARIANTS: dict[str, Variant] = {
    **{f"5 in [{low:g}, {high:g}]": Variant(spread(5, low, high)) for low, high in _RANGES},
    **{
        f"{count} in [{low:g}, {high:g}]": Variant(spread(count, low, high))
        for count, ranges in _FEWER.items()
        for low, high in ranges
    },
    "20 in [0, 1]": Variant(GRID),
    **{f"{count} in [0.2, 0.8]": Variant(spread(count)) for count in (10, 20)},
    **{f"{NOW}, blur {n} / 32": Variant(BASE, blur=n / 32) for n in (2, 4)},
    **{
        f"3 in [0.2, 0.7], blur {n} / 32": Variant(spread(3, 0.2, 0.7), blur=n / 32) for n in (4, 5)
    },
    **{f"1 at {point.place:g}": Variant((point,)) for point in GRID[1::2]},
    "mean for the empty text": Variant(BASE, Beside("mean"), "empty"),
    "mean for the empty text, 6 timesteps": Variant(spread(6), Beside("mean"), "empty"),
    "all classes for the empty text": Variant(BASE, Beside("all"), "empty"),
    "empty text, classes centred": Variant(BASE, Beside(origin="mean"), "empty"),
    "towards all classes, from the empty text": Variant(BASE, Beside(target="all"), "empty"),
    "towards all classes, from the mean": Variant(BASE, Beside("mean", target="all"), "empty"),
    "all but one, r of all but one": Variant(BASE, LeaveOneOut("each"), "all"),
    "all but one, r of all": Variant(BASE, LeaveOneOut("all"), "all"),
    "all but one, r of the empty text": Variant(BASE, LeaveOneOut("empty"), "all"),
    **_SPREAD,
    "6 in [0.2, 0.8]": Variant(spread(6), group="noise"),
    "3, each with noise and its opposite": Variant(
        (*_THREE, *(replace(point, sign=-1) for point in _THREE)), group="noise"
    ),
    "3, each with two noises": Variant((*_THREE, *spread(3, first=3)), group="noise"),
}
_FEW = {f"{n} in [0.2, 0.8]": Variant(spread(n)) for n in (5, 4, 3, 2)}
_MEAN = ("mean for the empty text", "mean for the empty text, 6 timesteps")
# By how many names there are, absent ones among them. Of sixteen, one text holds no more than half.
CROWDED: dict[int, dict[str, Variant]] = {
    8: {
        **_FEW,
        **{
            name: VARIANTS[name]
            for name in (*_MEAN, "empty text, classes centred", "all but one, r of all but one")
        },
        "5 x 4 halves": Variant(BASE, Halves(4), "halves"),
        "10 x 4 halves": Variant(spread(10), Halves(4), "halves"),
        **_SPREAD,
        "20 x 2 halves, least squares": Variant(spread(20), Halves(2, "solve"), "halves"),
    },
    16: {**_FEW, _MEAN[0]: VARIANTS[_MEAN[0]], **_SPREAD},
}
