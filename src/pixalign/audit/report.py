"""report.html: an audit on one page that loads nothing from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pixalign.alignment.trust import VERDICTS
from pixalign.audit.drawing import faults
from pixalign.audit.figures import RANKED, score
from pixalign.audit.records import METHODS, Record
from pixalign.core.files import write_text
from pixalign.pictures.drawing import hex_palette
from pixalign.pictures.pages import environment

EXAMPLES = 6  # pictures of each kind
LISTED = 12  # rows of a table before the rest is folded away
MATRIX = 16  # classes at most of a confusion matrix; of more the worst pairs are listed
COLOURS = dict(zip(VERDICTS, ("#0072b2", "#e69f00", "#cc79a7", "#9a9a9a"), strict=True))
TITLES = {
    "masks": "pictures with masks",
    "pictures": "pictures without masks",
    "prompts": "pictures drawn from prompts",
}
# What figures are called, and whether they are in percent.
NAMES: dict[str, tuple[str, bool]] = {
    "miou_attention": ("mIoU of attention", True),
    "miou_elbo": ("mIoU under the paper’s calibration", True),
    "miou_dense": ("mIoU of dense", True),
    **{verdict: (f"maps that are {verdict}", True) for verdict in VERDICTS},
    "standing": ("standing", False),
    "lead": ("lead over other classes", False),
    "agreement": ("agreement of attention and evidence", False),
    "overlap": ("overlap of the masks of attention and dense", False),
    "confidence": ("confidence in the class’s pixels", False),
    "belief": ("belief: overlap times confidence", False),
    "neglected": ("entities neglected", True),
    "merged": ("pairs of entities merged", True),
    "leaked": ("attributes leaked", True),
    "whole": ("pictures without any of these", True),
}


def write_page(
    document: Mapping[str, Any], records: Mapping[str, Sequence[Record]], out: Path
) -> Path:
    """The page of what audit.json holds, with pictures from the records by subject."""
    source = resources.files("pixalign.audit").joinpath("report.html.j2").read_text("utf-8")
    page = environment(
        html=True,
        number=number,
        short=short,
        colours=COLOURS,
        names=NAMES,
        ranked=RANKED,
        methods=[kind.name for kind in METHODS],
        listed=LISTED,
        matrix=matrix,
        pairs=confused_pairs,
        zip=zip,
    ).from_string(source)
    shown = {name: examples(document["kind"], own) for name, own in records.items()}
    text = page.render(
        document=document,
        subjects=[_ordered(own) | {"shown": shown[own["name"]]} for own in document["subjects"]],
        title=TITLES[document["kind"]],
    )
    return write_text(out / "report.html", text)


def _ordered(subject: Mapping[str, Any]) -> dict[str, Any]:
    """A subject with its classes as the page shows them, the weakest first."""

    def weakness(row: Mapping[str, Any]) -> tuple[float, str]:
        for key, sign in (("iou_dense", 1), (RANKED, 1), ("neglected", -1)):
            value = row.get(key, {}).get("value")
            if value is not None:
                return sign * value, row["name"]
        return 0.0, row["name"]

    return {**subject, "classes": sorted(subject["classes"], key=weakness)}


def number(
    figure: Mapping[str, Any] | Sequence[Any], percent: bool = True, signed: bool = False
) -> str:
    """ "45.2 (43.1 to 47.0)": a figure with its interval, or a difference [value, low, high]."""
    value, low, high = figure.values() if isinstance(figure, Mapping) else figure
    if value is None:
        return "–"
    said = short(value, percent, signed)
    if low is None or high is None or low == high:
        return said
    return f"{said} ({short(low, percent, signed)} to {short(high, percent, signed)})"


def short(value: float | None, percent: bool = True, signed: bool = False) -> str:
    """A number as the page writes it."""
    if value is None:
        return "–"
    return f"{value:{'+' if signed else ''}.{1 if percent else 2}f}".replace("-", "−")


def matrix(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each true class the percent of its pixels by what they are called; {} of many classes."""
    names = sorted({row["true"] for row in rows})
    if len(names) > MATRIX:
        return {}
    found = {name: dict.fromkeys(["background", *names], 0.0) for name in names}
    for row in rows:
        found[row["true"]][row["called"]] = row["percent"]
    return found


def confused_pairs(confusion: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The pairs of classes that dense confuses most, beside what the other methods make of them."""
    of_methods = {
        name: {(row["true"], row["called"]): row["percent"] for row in rows}
        for name, rows in confusion.items()
    }
    pairs = [
        {**row, **{name: known.get((row["true"], row["called"]), 0.0)
                   for name, known in of_methods.items()}}
        for row in confusion["dense"]
        if row["called"] not in (row["true"], "background")
    ]  # fmt: skip
    return pairs[:LISTED]


# ---- pictures ----


def examples(kind: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Lists of pictures to look at: a title, and of each its caption and what is shown."""
    if kind == "prompts":
        return _drawn_examples(records)
    known = [record for record in records if record.get("shown")]
    if kind == "masks":
        title, cost = "The worst masks of dense", _mean_iou
    else:
        title, cost = "The most doubtful", _belief
    chosen = sorted(known, key=lambda record: (cost(record), record["key"]))[:EXAMPLES]
    return [{"title": title, "cards": [_card(record, _said(record)) for record in chosen]}]


def _mean_iou(record: Record) -> float:
    pixels = record["pixels"]["dense"]
    ious = [
        pixels[i][i] / max(1, sum(pixels[i]) + sum(row[i] for row in pixels) - pixels[i][i])
        for i in range(1, len(pixels))
    ]
    return float(sum(ious) / len(ious))


def _belief(record: Record) -> float:
    rows = record["classes"]
    return sum(score(row, RANKED) or 0.0 for row in rows) / len(rows)


def _said(record: Record) -> list[str]:
    return [
        f"{row['name']}: {row['verdict']}" + (f" with {row['other']}" if row["other"] else "")
        for row in record["classes"]
    ]


def _card(record: Record, said: Sequence[str]) -> dict[str, Any]:
    title = record.get("prompt", record["key"])
    tints = hex_palette(len(said)) if "layers" in record else [""] * len(said)
    return {"title": title, "said": list(zip(said, tints, strict=True)), "shown": record["shown"]}


def _drawn_examples(records: Sequence[Record]) -> list[dict[str, Any]]:
    kinds: dict[str, Callable[[Record], list[str]]] = {
        "Neglected": _neglected, "Merged": _merged, "Leaked": _leaked,
    }  # fmt: skip
    lists = []
    for title, say in kinds.items():
        cards = [_card(record, said) for record in records if (said := say(record))]
        lists.append({"title": title, "cards": cards[:EXAMPLES]})
    return lists


def _neglected(record: Record) -> list[str]:
    rows = zip(record["classes"], faults(record).neglected, strict=True)
    return [
        f"no {row['phrase']} (standing {100 * row['standing']:.2f} %)"
        for row, missing in rows
        if missing
    ]


def _merged(record: Record) -> list[str]:
    phrases = [row["phrase"] for row in record["classes"]]
    return [
        f"{phrases[first]} and {phrases[second]} are in one place"
        for first, second, merged in faults(record).pairs
        if merged
    ]


def _leaked(record: Record) -> list[str]:
    names, words = [row["name"] for row in record["classes"]], record["attributes"]
    return [
        f"{words[place]['word']} of {names[words[place]['of']]} is seen on {names[rival]}: "
        f"{100 * added:.0f} % of what is explained there is due to it"
        for place, rival, added, leaked in faults(record).attributes
        if leaked
    ]
