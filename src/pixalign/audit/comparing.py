"""Two subjects on the same pictures: what B gained and lost against A, paired."""

from __future__ import annotations

from typing import Any

from pixalign.audit.figures import RANKED, Figures
from pixalign.bench.groupings import effect

# What says of a class whether it gained, and whether more is better; the first that is known.
_OF_CLASSES = (("iou_dense", True), (RANKED, True), ("neglected", False))
LEAST = 5  # pictures of a class: fewer say nothing of others


def compared(base: Figures, own: Figures) -> dict[str, Any]:
    """Differences [value, low, high] under the same resamples: overall, by class, by layer.

    A class of `LEAST` pictures or more has gained or lost where the interval of its difference
    leaves out 0.
    """
    overall = {
        name: effect(own.overall[name], base.overall[name])
        for name in own.overall
        if name in base.overall
    }
    known = {name for figures in own.classes.values() for name in figures}
    measure, more = next((pair for pair in _OF_CLASSES if pair[0] in known), ("", True))
    rows = []
    for name in own.classes:
        pair = [figures.classes.get(name, {}).get(measure) for figures in (own, base)]
        if pair[0] is None or pair[1] is None:
            continue
        difference = effect(pair[0], pair[1])
        assert difference is not None
        rows.append(
            {
                "name": name,
                "pictures": own.counts[name]["pictures"],
                "difference": difference,
                "change": _change(difference, more, own.counts[name]["pictures"]),
            }
        )
    rows.sort(key=lambda row: (row["difference"][0] or 0.0, row["name"]))
    changes = {
        way: [row["name"] for row in rows if row["change"] == way] for way in ("gained", "lost")
    }
    return {"overall": overall, "measure": measure, "classes": rows, **changes}


def _change(difference: list[float | None], more: bool, pictures: int) -> str:
    """ "gained", "lost" or "same"."""
    _, low, high = difference
    if pictures < LEAST or low is None or high is None or low <= 0 <= high:
        return "same"
    return "gained" if (low > 0) == more else "lost"
