"""How far a class's map can be believed: pure functions of evidence and maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.alignment.evidence import blur, cosine
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax, resize
from pixalign.core.values import Evidence, Phrase, Size

VERDICTS = ("sure", "blind", "confused", "absent")
_REGION = 0.8  # of a map's peak: what counts as the class's own region


@dataclass(frozen=True)
class Trust:
    """A verdict on one class, and the numbers behind it.

    "absent": the class's text explains next to nothing that no other class's explains as well.
    "confused": where the map points, ``other`` explains the picture, and the class hardly does.
    "blind": where the map points, no class in the picture explains it, or the map points nowhere.
    Otherwise "sure".

    ``numbers`` are shares of what the empty text misses. `presence` and `standing` are shares of
    all that it misses in the picture. ``lead`` is what the class explains where its map points, in
    units of the picture's mean; ``others_lead`` is the most that another class in the picture
    explains there, or 0.
    """

    verdict: str
    other: str | None
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        return f"confused with {self.other}" if self.verdict == "confused" else self.verdict


def explained(evidence: Evidence, config: AlignConfig) -> Tensor:
    """float32 [N, h, w]: how much of what the empty text misses the text of each class explains.

    The error falls by 2 P - O where a text's full step d is taken, in units of the mean error under
    the empty text. A network with guidance built in exaggerates its steps, all by about the same
    factor; so where shorter ones suit the picture, steps are shortened: to c d, with c what fits
    best where each position has the class of the highest local cosine.
    """
    added, energy = (blur(x, config.absent_blur) for x in (evidence.projection, evidence.energy))
    leading = cosine(added, energy).argmax(0, keepdim=True)
    fit, size = (x.gather(0, leading)[0] for x in (added, energy))
    fits = fit > 0
    best = fit[fits].sum() / size[fits].sum().clamp_min(torch.finfo(torch.float32).tiny)
    step = float(best.clamp_max(1)) if fits.any() else 1.0
    return 2 * step * added - step**2 * energy


def presence(evidence: Evidence, config: AlignConfig) -> Tensor:
    """float32 [N]: the share of what the empty text misses that each class's text explains."""
    return explained(evidence, config).clamp_min(0).mean((1, 2))


def standing(evidence: Evidence, config: AlignConfig) -> Tensor:
    """float32 [N]: of that share, what no other class that stands as high explains as well.

    The class that alone explains least goes first, then the next among those left, and so on:
    standing is the highest share at which one had gone by then. So a name whose place another
    explains better stands low, and of two names for one thing the better stands high.
    """
    return _standing(explained(evidence, config))


def _standing(maps: Tensor) -> Tensor:
    """`standing` by what each class explains [N, h, w]."""
    shares = torch.cat([maps, torch.zeros_like(maps[:1])]).flatten(1)  # the last row: no text
    total, left = maps.clamp_min(0).mean((1, 2)).tolist(), set(range(len(maps)))
    levels, reached = torch.zeros(len(maps)), 0.0
    top, who = shares.topk(2, 0)
    while left:
        lead = (top[0] - top[1]) / shares.shape[1]
        alone = torch.zeros(len(shares)).index_add(0, who[0], lead).tolist()
        gone = min(left, key=lambda index: (alone[index], total[index]))
        reached = max(reached, alone[gone])
        levels[gone] = reached
        left.remove(gone)
        shares[gone] = -torch.inf
        again = (who == gone).any(0)
        top[:, again], who[:, again] = shares[:, again].topk(2, 0)
    return levels


def there(evidence: Evidence, config: AlignConfig) -> Tensor:
    """bool [N]: which classes are likely in the picture, under a resolved config."""
    return standing(evidence, config) >= absence(config)


def absence(config: AlignConfig) -> float:
    """The standing below which a class is absent.

    The config's bound is for 20 timesteps. Fewer leave more noise, which falls with the root of
    their number and explains a little, so that everything stands higher.
    """
    assert config.absent_below is not None
    return config.absent_below * math.sqrt(20 / config.elbo_count)


def trust(
    phrases: Sequence[Phrase], evidence: Evidence, maps: Tensor, config: AlignConfig
) -> tuple[Trust, ...]:
    """A verdict for each class, from its evidence and its map [N, h, w] before evidence acts."""
    shares = explained(evidence, config)
    stands = _standing(shares)
    present = stands >= absence(config)
    size: Size = (shares.shape[-2], shares.shape[-1])
    region = (minmax(resize(maps.float(), size), (1, 2)) >= _REGION).float()
    points = region.sum((1, 2))  # a flat map has no region
    region = region / points.clamp_min(1)[:, None, None]
    leads = torch.einsum("ihw,jhw->ij", region, shares)  # of class j in the region of i
    rivals = leads.masked_fill(~present, 0).fill_diagonal_(0).clamp_min(0)
    verdicts = []
    for index, levels in enumerate(_levels(shares, stands)):
        lead, best = float(leads[index, index]), float(rivals[index].max())
        verdict, other = "sure", None
        if not present[index]:
            verdict = "absent"
        elif lead <= config.doubt_below * best and best:
            verdict, other = "confused", phrases[int(rivals[index].argmax())].name
        elif lead <= 0:
            verdict = "blind"
        verdicts.append(Trust(verdict, other, levels | {"lead": lead, "others_lead": best}))
    return tuple(verdicts)


def absent(evidence: Evidence, config: AlignConfig) -> tuple[Trust, ...]:
    """The verdicts on classes that are not looked for further."""
    shares = explained(evidence, config)
    return tuple(Trust("absent", None, levels) for levels in _levels(shares, _standing(shares)))


def _levels(shares: Tensor, stands: Tensor) -> list[dict[str, float]]:
    presences = shares.clamp_min(0).mean((1, 2)).tolist()
    return [
        {"presence": present, "standing": level}
        for present, level in zip(presences, stands.tolist(), strict=True)
    ]


def doubts(
    phrases: Sequence[Phrase], verdicts: Sequence[Trust], own_bounds: bool = True
) -> list[str]:
    """A warning for each class that is not sure, and whose the bounds are if not the model's."""
    said = {
        "absent": "is likely not in the picture (standing {standing:.2%})",
        "confused": "points where {other!r} explains the picture better (lead {lead:.1%})",
        "blind": "points where no class explains the picture (lead {lead:.1%})",
    }
    warnings = [
        f"class {phrase.name!r} {said[about.verdict].format(other=about.other, **about.numbers)}"
        for phrase, about in zip(phrases, verdicts, strict=False)
        if about.verdict != "sure"
    ]
    if warnings and not own_bounds:
        warnings.append(
            "these verdicts have the bounds of the lab's small models; this one has none"
        )
    return warnings


def distillation(config: AlignConfig, why: str, told: bool) -> list[str]:
    """A warning where the network was distilled, or is told its guidance; config is resolved."""
    if config.distilled:
        form = (
            "raw losses, which this reads, may rank wrong texts first: take method='dense'"
            if config.reads_raw_losses
            else "only directions of its estimates are compared, which guidance does not change"
        )
        return [f"the network is distilled ({why}) and answers as if guided; {form}"]
    if told:
        return [
            "the network is told its guidance; evidence is measured at guidance 1, which is none "
            "but is hardly what it was distilled for"
        ]
    return []
