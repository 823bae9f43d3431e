"""How far a class's map can be believed: pure functions of evidence and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pixalign.alignment.evidence import cosine, local_cosine, log_ratio
from pixalign.config import AlignConfig
from pixalign.core.maps import minmax, resize
from pixalign.core.values import Evidence, Phrase, Size

VERDICTS = ("sure", "blind", "confused", "absent")
_PRESENCE_BLUR = 6 / 32  # a share of the side: about the size of an object
_REGION = 0.5  # of a map's peak: what counts as the class's own region


@dataclass(frozen=True)
class Trust:
    """A verdict on one class, and the numbers behind it.

    "absent": the text explains the picture hardly better than no text does, or nowhere better than
    the other classes' texts. "confused": in the region that the map points at, the evidence names
    ``other``. "blind": there it names neither the class nor one other, or the map points nowhere.
    Else "sure". ``numbers`` are `presence` and `standing`; ``lead``, the mean log ratio in the
    map's region, 0 where the class explains it best; and ``others_lead``, the highest of another
    class there.
    """

    verdict: str
    other: str | None
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        return f"confused with {self.other}" if self.verdict == "confused" else self.verdict


def presence(evidence: Evidence) -> Tensor:
    """float32 [N]: the cosine between what a text adds and what was missing.

    The mean of the highest local one and of that over the whole picture. Not compared between
    classes, so that it does not depend on which others are asked for.
    """
    local = local_cosine(evidence, _PRESENCE_BLUR).amax((1, 2))
    whole = cosine(evidence.projection.mean((1, 2)), evidence.energy.mean((1, 2)))
    return (local + whole) / 2


def standing(evidence: Evidence, config: AlignConfig) -> Tensor:
    """float32 [N]: presence, and by how much a class leads where it leads most.

    The lead is that of the local cosine over the highest of the other classes' and over 0, that of
    no text. A name whose place another explains better stands low; alone there is no lead.
    """
    local = local_cosine(evidence, config.evidence_blur)
    if len(local) == 1:
        return presence(evidence)
    best, second = local.topk(2, 0).values
    others = torch.where(local == best, second, best).clamp_min(0)
    return presence(evidence) + (local - others).amax((1, 2))


def there(evidence: Evidence, config: AlignConfig) -> Tensor:
    """bool [N]: which classes are likely in the picture, under a resolved config.

    Bounds of the config are for 20 timesteps; with fewer, noise makes everything larger. The power
    was seen on the lab's val scenes, where 10, 5 and 3 of the timesteps were taken.
    """
    assert config.absent_below is not None
    fewer = (20 / config.elbo_count) ** 0.4
    low, outdone = (x * fewer if x > 0 else x for x in (config.absent_below, config.outdone_below))
    known = presence(evidence) >= low
    return known if len(known) == 1 else known & (standing(evidence, config) >= outdone)


def trust(
    phrases: Sequence[Phrase], evidence: Evidence, maps: Tensor, config: AlignConfig
) -> tuple[Trust, ...]:
    """A verdict for each class, from its evidence and its map [N, h, w] before evidence acts."""
    ratio = log_ratio(evidence, config)
    size: Size = (ratio.shape[-2], ratio.shape[-1])
    region = (minmax(resize(maps.float(), size), (1, 2)) >= _REGION).float()
    points = region.sum((1, 2))  # a flat map has no region
    region = region / points.clamp_min(1)[:, None, None]
    leads = torch.einsum("ihw,jhw->ij", region, ratio)  # of class j in the region of i
    verdicts, present = [], there(evidence, config).tolist()
    for index, levels in enumerate(_levels(evidence, config)):
        lead, others = float(leads[index, index]), leads[index].clone()
        others[index] = -torch.inf
        best, who = (float(others.max()), int(others.argmax())) if len(others) > 1 else (lead, 0)
        verdict, other = "sure", None
        if not present[index]:
            verdict = "absent"
        elif lead < config.doubt_below or not points[index]:
            named = best >= config.doubt_below and points[index]
            verdict, other = ("confused", phrases[who].name) if named else ("blind", None)
        verdicts.append(Trust(verdict, other, levels | {"lead": lead, "others_lead": best}))
    return tuple(verdicts)


def absent(evidence: Evidence, config: AlignConfig) -> tuple[Trust, ...]:
    """The verdicts on classes that are not looked for further."""
    return tuple(Trust("absent", None, levels) for levels in _levels(evidence, config))


def _levels(evidence: Evidence, config: AlignConfig) -> list[dict[str, float]]:
    pairs = zip(presence(evidence).tolist(), standing(evidence, config).tolist(), strict=True)
    return [{"presence": present, "standing": stands} for present, stands in pairs]


def doubts(
    phrases: Sequence[Phrase], verdicts: Sequence[Trust], own_bounds: bool = True
) -> list[str]:
    """A warning for each class that is not sure, and whose the bounds are if not the model's."""
    said = {
        "absent": "is likely not in the picture (standing {standing:.2f})",
        "confused": "points where {other!r} explains the picture better (lead {lead:.1f})",
        "blind": "points where no class explains the picture (lead {lead:.1f})",
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
