"""Tables of results: one set for each spec, over the models and datasets that were run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pixalign.bench.sheets import Column, Result, Sheet, sheets
from pixalign.bench.spec import METRICS, Row, Spec, load_spec, spec_names

MEASURES = {
    "datasets": "mIoU in %",
    "metrics": "mIoU, precision and F1 in %",
    "frequency": "mIoU in % of the classes that training showed rarely, sometimes and often",
    "groups": "IoU in % of the class that a dial changes",
}
THRESHOLD = {
    "oracle": "each row at the threshold that is best on these images, as in the paper",
    "fixed": "each row at the threshold fixed in advance",
}
ENOUGH = 20  # images or pairs; below, resampling says little and nothing is bold
BOLD = f"bold where the 95 % interval excludes 0, if over {ENOUGH} images or more"
SECONDS = "of what each row uses: encoding, attention, its part of the ELBO's timesteps, heatmaps"
TITLES = {"miou": "mIoU", "precision": "precision", "f1": "F1"}
NOT_RUN, NOTHING, MARK = "not run", "–", "†"


@dataclass(frozen=True)
class Cell:
    """A text, bold where the interval of an effect over enough images excludes 0."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A heading and lines of as many cells."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def tables(sheet: Sheet) -> list[Table]:
    """Values at both kinds of threshold, then effects; of dials, both together."""
    if sheet.any["columns"] == "groups":
        return [_dials(sheet, kind) for kind in THRESHOLD]
    found = [_values(sheet, kind) for kind in THRESHOLD] + [_effects(sheet), _seconds(sheet)]
    return [table for table in found if table.rows]


def warnings(result: Result) -> list[str]:
    """Why a result is not that of the whole dataset, or not that of the spec as it is now."""
    found = []
    if not result["complete"]:
        found.append(f"Unfinished: {result['done']} of {result['images']} images.")
    if result["limit"] is not None:
        found.append(f"Limited (--limit {result['limit']}): not the whole dataset.")
    known = result["spec"] in spec_names()
    if known and load_spec(result["spec"]).digest() != result["digest"]:
        found.append("The spec has changed since this run.")
    return found


def markdown(table: Table) -> str:
    """A table as Markdown."""
    cells = [[f"**{c.text}**" if c.bold else c.text for c in row] for row in table.rows]
    written = [
        "| " + " | ".join(text.replace("|", "\\|") for text in line) + " |"
        for line in (table.head, *cells)
    ]
    written.insert(1, "|" + "---|" * len(table.head))
    return "\n".join([f"{table.title}:", "", *written, *(f"\n{note}" for note in table.notes)])


def markdown_page(results: Sequence[Result], level: int = 2) -> str:
    """The tables of all specs as Markdown, with headings of that level."""
    parts = []
    for sheet in sheets(results):
        one = sheet.any
        heading = f"{'#' * level} {one['title']}"
        parts.append(f"{heading}\n\n`{one['spec']}`, {one['label']} in the paper.")
        parts += [markdown(table) for table in tables(sheet)]
        parts += ["\n".join(f"- {note}" for note in one["notes"])] if one["notes"] else []
    return "\n\n".join(parts) + "\n" if parts else ""


def points(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """ "76.6 (76.0–76.9)"; without an interval "76.6"."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if low is None or high is None else f"{value:.1f} ({low:.1f}–{high:.1f})"


def signed(value: float) -> str:
    """ "+0.36", with a true minus sign, and "0.00"."""
    text = f"{value:+.2f}".replace("-", "−")
    return text if text.strip("+−0.") else "0.00"


def effect_cell(effect: Sequence[float | None] | None, count: int) -> Cell:
    """ "+0.36 (+0.22 to +0.52)", bold where 0 is outside and ``count`` is `ENOUGH`."""
    if effect is None or effect[0] is None:
        return Cell(NOTHING)
    value, *ends = effect
    assert value is not None
    low, high = ends if len(ends) == 2 else (None, None)
    if low is None or high is None:
        return Cell(signed(value))
    bold = count >= ENOUGH and (low > 0 or high < 0)
    return Cell(f"{signed(value)} ({signed(low)} to {signed(high)})", bold)


def _values(sheet: Sheet, kind: str) -> Table:
    """Model by row; the paper's numbers, which are of the best thresholds, beside these."""
    columns = sheet.columns()
    lines = [(model, name) for model in sheet.models for name in sheet.names]
    beside = {c for c in columns if any(_paper(sheet, *line, c) is not None for line in lines)}
    beside = beside if kind == "oracle" else set()
    head = ["Model", "Row"]
    for column in columns:
        head += [_title(sheet, column), "Paper (ours minus it)"][: 1 + (column in beside)]
    rows = []
    for model, name in lines:
        cells = [Cell(model), Cell(sheet.label(name))]
        for column in columns:
            cells.append(_value_cell(sheet, model, name, column, kind))
            if column in beside:
                cells.append(_paper_cell(sheet, model, name, column))
        rows.append(tuple(cells))
    title = f"{MEASURES[sheet.any['columns']]}, {THRESHOLD[kind]}"
    return Table(title, tuple(head), tuple(rows), _marks(sheet, kind))


def _seconds(sheet: Sheet) -> Table:
    """What an image costs, where methods are compared; no rows where only settings are."""
    methods = {
        row["method"] for result in sheet.results.values() for row in result["rows"].values()
    }
    timed = any(result.get("row_seconds") for result in sheet.results.values())
    lines = [(model, name) for model in sheet.models for name in sheet.names]
    rows = [
        (
            Cell(model),
            Cell(sheet.label(name)),
            *(_time_cell(sheet, model, name, dataset) for dataset in sheet.datasets),
        )
        for model, name in lines
        if timed and len(methods) > 1
    ]
    hardware = sorted({result["device"] for result in sheet.results.values()})
    title = f"Seconds an image on {', '.join(hardware)}, {SECONDS}"
    return Table(title, ("Model", "Row", *sheet.datasets), tuple(rows), ())


def _time_cell(sheet: Sheet, model: str, name: str, dataset: str) -> Cell:
    spent = sheet.results.get((model, dataset), {}).get("row_seconds", {}).get(name)
    return Cell(NOTHING if spent is None else f"{spent:.3g}")


def _effects(sheet: Sheet) -> Table:
    """Each row minus its baseline, at both kinds of threshold, and the paper's difference."""
    lines = [
        (model, name, column)
        for model in sheet.models
        for name in sheet.names
        for column in sheet.columns()
        if sheet.baseline(name) != name and sheet.row(model, column.dataset, name)
    ]
    paper = [Cell(_paper_effect(sheet, *line)) for line in lines]
    beside = any(cell.text != NOTHING for cell in paper)
    twin = bool(sheet.any["extends"])
    rows = [
        (
            *(Cell(text) for text in (model, sheet.label(name), sheet.baseline(name))),
            Cell(_title(sheet, column)),
            *(_own_effect(sheet, model, name, column, kind) for kind in THRESHOLD),
            *([cell] if beside else []),
        )
        for (model, name, column), cell in zip(lines, paper, strict=True)
    ]
    head = ["Model", "Row", "Minus", "On", "Best threshold", "Fixed threshold"]
    head += ["Paper: range" if twin else "Paper"] if beside else []
    note = "The paper's range is over all its models and datasets, none of them these."
    title = f"Each row minus its baseline in points, {BOLD}"
    return Table(title, tuple(head), tuple(rows), (note,) if beside and twin else ())


def _dials(sheet: Sheet, kind: str) -> Table:
    """Model by dial and level: each row's value, then the effects."""
    (dataset,) = sheet.datasets
    compared = [name for name in sheet.names if sheet.baseline(name) != name]
    differences = [f"{sheet.label(name)} minus {sheet.baseline(name)}" for name in compared]
    head = ("Model", "Dial", "Pairs", *map(sheet.label, sheet.names), *differences)
    rows = []
    for model in sheet.models:
        for column in sheet.columns():
            there = [sheet.row(model, dataset, name) for name in sheet.names]
            pairs = next((row["groups"][column.key]["pairs"] for row in there if row), 0)
            values = [_value_cell(sheet, model, name, column, kind) for name in sheet.names]
            effects = [_own_effect(sheet, model, name, column, kind) for name in compared]
            rows.append((Cell(model), Cell(column.key), Cell(str(pairs)), *values, *effects))
    title = f"{MEASURES['groups']}, {THRESHOLD[kind]}; {BOLD}"
    return Table(title, head, tuple(rows), _marks(sheet, kind))


def _title(sheet: Sheet, column: Column) -> str:
    key = TITLES.get(column.key, column.key)
    several = len(sheet.datasets) > 1 or not key
    return " ".join(part for part in (column.dataset if several else "", key) if part)


def _entry(row: Result, column: Column, columns: str, kind: str) -> Mapping[str, Any]:
    """{"value", "low", "high", "effect"} of a row in a column; without an interval, low is None."""
    if columns in ("frequency", "groups"):
        found = (row[columns] or {}).get(column.key) or {}
        found = found.get("fixed", {}) if kind == "fixed" else found
        value = found.get("miou", found.get("iou"))
        return {key: found.get(key) for key in ("low", "high", "effect")} | {"value": value}
    figures = row[kind]
    if column.key not in ("", "miou"):
        return {"value": figures[column.key], "low": None, "high": None, "effect": None}
    ends = {"low": figures["miou_low"], "high": figures["miou_high"]}
    return {"value": figures["miou"], **ends, "effect": row["effect"][kind]}


def _value_cell(sheet: Sheet, model: str, name: str, column: Column, kind: str) -> Cell:
    result, row = sheet.results.get((model, column.dataset)), sheet.row(model, column.dataset, name)
    if result is None or row is None:
        return Cell(NOTHING if result is None or not result["done"] else NOT_RUN)
    entry = _entry(row, column, sheet.any["columns"], kind)
    text = points(entry["value"], entry["low"], entry["high"])
    if kind == "fixed" and column.key in ("", "miou"):
        text += f" at {row['fixed']['threshold']:.2f}"
    return Cell(text + (MARK if _partial(result) else ""))


def _own_effect(sheet: Sheet, model: str, name: str, column: Column, kind: str) -> Cell:
    row = sheet.row(model, column.dataset, name)
    base = sheet.row(model, column.dataset, sheet.baseline(name))
    if row is None or base is None:
        return Cell(NOTHING)
    if column.key in METRICS and column.key != "miou":
        return effect_cell([row[kind][column.key] - base[kind][column.key]], 0)
    columns = sheet.any["columns"]
    images = sheet.results[model, column.dataset]["done"]
    count = row["groups"][column.key]["pairs"] if columns == "groups" else images
    return effect_cell(_entry(row, column, columns, kind)["effect"], count)


def _paper(sheet: Sheet, model: str, name: str, column: Column) -> float | None:
    """The paper's number of the same model, row and column."""
    if sheet.spec is None or sheet.spec.extends:
        return None
    keys = column.paper_keys(sheet.any["columns"])
    return sheet.spec.paper_number(model, name, *keys)


def _paper_cell(sheet: Sheet, model: str, name: str, column: Column) -> Cell:
    number, row = _paper(sheet, model, name, column), sheet.row(model, column.dataset, name)
    if number is None:
        return Cell(NOTHING)
    value = _entry(row, column, sheet.any["columns"], "oracle")["value"] if row else None
    return Cell(f"{number:.2f}" + ("" if value is None else f" ({signed(value - number)})"))


def _paper_effect(sheet: Sheet, model: str, name: str, column: Column) -> str:
    """The paper's effect there; on a twin the range of all that it reports."""
    spec, row = sheet.spec, sheet.spec_row(name)
    if spec is None or row is None:
        return NOTHING
    if not spec.extends:
        one = spec.paper_effect(model, row, *column.paper_keys(spec.columns))
        return NOTHING if one is None else signed(one)
    effects = list(_all_effects(spec, row, column))
    return f"{signed(min(effects))} to {signed(max(effects))}" if effects else NOTHING


def _all_effects(spec: Spec, row: Row, column: Column) -> Iterator[float]:
    """A row's effects in the paper over all models and datasets, of the same metric or group."""
    for model, rows in spec.paper.items():
        datasets = [""] if spec.columns == "metrics" else rows.get(row.name, {})
        for dataset in datasets:
            keys = Column(dataset, column.key).paper_keys(spec.columns)
            found = spec.paper_effect(model, row, *keys)
            if found is not None:
                yield found


def _partial(result: Result) -> bool:
    return not result["complete"] or result["limit"] is not None


def _marks(sheet: Sheet, kind: str) -> tuple[str, ...]:
    """What the mark at a cell means, below the first table."""
    return tuple(
        f"{MARK} {model} on {dataset}: {result['done']} images. {' '.join(warnings(result))}"
        for (model, dataset), result in sheet.results.items()
        if _partial(result) and kind == "oracle"
    )
