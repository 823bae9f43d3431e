"""Tables of results: one set for each spec, over the models and datasets that were run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pixalign.bench.result_grid import Column, Result, ResultGrid, result_grids
from pixalign.bench.spec import METRICS, Spec, SpecRow, load_spec, spec_names
from pixalign.methods import METHODS

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
OURS = "ours"  # the label of specs that stand for no table of the paper


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


def result_tables(grid: ResultGrid) -> list[Table]:
    """Values at both kinds of threshold, then effects; of dials, both together."""
    if grid.any["columns"] == "groups":
        return [_dials(grid, kind) for kind in THRESHOLD]
    made = [_values(grid, kind) for kind in THRESHOLD] + [_effects(grid), _seconds(grid)]
    return [table for table in made if table.rows]


def warnings(result: Result) -> list[str]:
    """Why a result is not that of the whole dataset, or not that of the spec as it is now."""
    said = []
    if not result["complete"]:
        said.append(f"Unfinished: {result['done']} of {result['images']} images.")
    if result["limit"] is not None:
        said.append(f"Limited (--limit {result['limit']}): not the whole dataset.")
    known = result["spec"] in spec_names()
    if known and load_spec(result["spec"]).digest() != result["digest"]:
        said.append("The spec has changed since this run.")
    return said


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
    for grid in result_grids(results):
        about = grid.any
        heading = f"{'#' * level} {about['title']}"
        source = "" if about["label"] == OURS else f", {about['label']} in the paper"
        parts.append(f"{heading}\n\n`{about['spec']}`{source}.")
        parts += [markdown(table) for table in result_tables(grid)]
        parts += ["\n".join(f"- {note}" for note in about["notes"])] if about["notes"] else []
    return "\n\n".join(parts) + "\n" if parts else ""


def format_points(value: float | None, low: float | None = None, high: float | None = None) -> str:
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


def _values(grid: ResultGrid, kind: str) -> Table:
    """Model by row; the paper's numbers, which are of the best thresholds, beside these."""
    columns = grid.columns()
    lines = [(model, name) for model in grid.models for name in grid.names]
    beside = {c for c in columns if any(_paper(grid, *line, c) is not None for line in lines)}
    beside = beside if kind == "oracle" else set()
    head = ["Model", "Row"]
    for column in columns:
        head += [_title(grid, column), "Paper (ours minus it)"][: 1 + (column in beside)]
    rows = []
    for model, name in lines:
        cells = [Cell(model), Cell(grid.label(name))]
        for column in columns:
            cells.append(_value_cell(grid, model, name, column, kind))
            if column in beside:
                cells.append(_paper_cell(grid, model, name, column))
        rows.append(tuple(cells))
    title = f"{MEASURES[grid.any['columns']]}, {THRESHOLD[kind]}"
    return Table(title, tuple(head), tuple(rows), _marks(grid, kind))


def _seconds(grid: ResultGrid) -> Table:
    """What an image costs, where methods are compared; no rows where only settings are."""
    used = {row["method"] for result in grid.results.values() for row in result["rows"].values()}
    methods = {name for name in used if not METHODS[name].separable}
    timed = any(result.get("row_seconds") for result in grid.results.values())
    lines = [(model, name) for model in grid.models for name in grid.names]
    rows = [
        (
            Cell(model),
            Cell(grid.label(name)),
            *(_time_cell(grid, model, name, dataset) for dataset in grid.datasets),
        )
        for model, name in lines
        if timed and methods
    ]
    hardware = sorted({result["device"] for result in grid.results.values()})
    title = f"Seconds an image on {', '.join(hardware)}, {SECONDS}"
    return Table(title, ("Model", "Row", *grid.datasets), tuple(rows), ())


def _time_cell(grid: ResultGrid, model: str, name: str, dataset: str) -> Cell:
    spent = grid.results.get((model, dataset), {}).get("row_seconds", {}).get(name)
    return Cell(NOTHING if spent is None else f"{spent:.3g}")


def _effects(grid: ResultGrid) -> Table:
    """Each row minus its baseline, at both kinds of threshold, and the paper's difference."""
    lines = [
        (model, name, column)
        for model in grid.models
        for name in grid.names
        for column in grid.columns()
        if grid.baseline(name) != name and grid.row(model, column.dataset, name)
    ]
    paper = [Cell(_paper_effect(grid, *line)) for line in lines]
    beside = any(cell.text != NOTHING for cell in paper)
    twin = bool(grid.any["extends"])
    rows = [
        (
            *(Cell(text) for text in (model, grid.label(name), grid.baseline(name))),
            Cell(_title(grid, column)),
            *(_own_effect(grid, model, name, column, kind) for kind in THRESHOLD),
            *([cell] if beside else []),
        )
        for (model, name, column), cell in zip(lines, paper, strict=True)
    ]
    head = ["Model", "Row", "Minus", "On", "Best threshold", "Fixed threshold"]
    head += ["Paper: range" if twin else "Paper"] if beside else []
    note = "The paper's range is over all its models and datasets, none of them these."
    title = f"Each row minus its baseline in points, {BOLD}"
    return Table(title, tuple(head), tuple(rows), (note,) if beside and twin else ())


def _dials(grid: ResultGrid, kind: str) -> Table:
    """Model by dial and level: each row's value, then the effects."""
    (dataset,) = grid.datasets
    compared = [name for name in grid.names if grid.baseline(name) != name]
    differences = [f"{grid.label(name)} minus {grid.baseline(name)}" for name in compared]
    head = ("Model", "Dial", "Pairs", *map(grid.label, grid.names), *differences)
    rows = []
    for model in grid.models:
        for column in grid.columns():
            there = [grid.row(model, dataset, name) for name in grid.names]
            pairs = next((row["groups"][column.key]["pairs"] for row in there if row), 0)
            values = [_value_cell(grid, model, name, column, kind) for name in grid.names]
            effects = [_own_effect(grid, model, name, column, kind) for name in compared]
            rows.append((Cell(model), Cell(column.key), Cell(str(pairs)), *values, *effects))
    title = f"{MEASURES['groups']}, {THRESHOLD[kind]}; {BOLD}"
    return Table(title, head, tuple(rows), _marks(grid, kind))


def _title(grid: ResultGrid, column: Column) -> str:
    key = TITLES.get(column.key, column.key)
    several = len(grid.datasets) > 1 or not key
    return " ".join(part for part in (column.dataset if several else "", key) if part)


def _entry(row: Result, column: Column, columns: str, kind: str) -> Mapping[str, Any]:
    """{"value", "low", "high", "effect"} of a row in a column; without an interval, low is None."""
    if columns in ("frequency", "groups"):
        entry = (row[columns] or {}).get(column.key) or {}
        entry = entry.get("fixed", {}) if kind == "fixed" else entry
        value = entry.get("miou", entry.get("iou"))
        return {key: entry.get(key) for key in ("low", "high", "effect")} | {"value": value}
    figures = row[kind]
    if column.key not in ("", "miou"):
        return {"value": figures[column.key], "low": None, "high": None, "effect": None}
    ends = {"low": figures["miou_low"], "high": figures["miou_high"]}
    return {"value": figures["miou"], **ends, "effect": row["effect"][kind]}


def _value_cell(grid: ResultGrid, model: str, name: str, column: Column, kind: str) -> Cell:
    result, row = grid.results.get((model, column.dataset)), grid.row(model, column.dataset, name)
    if result is None or row is None:
        return Cell(NOTHING if result is None or not result["done"] else NOT_RUN)
    entry = _entry(row, column, grid.any["columns"], kind)
    text = format_points(entry["value"], entry["low"], entry["high"])
    if kind == "fixed" and column.key in ("", "miou"):
        text += f" at {row['fixed']['threshold']:.2f}"
    return Cell(text + (MARK if _partial(result) else ""))


def _own_effect(grid: ResultGrid, model: str, name: str, column: Column, kind: str) -> Cell:
    row = grid.row(model, column.dataset, name)
    base = grid.row(model, column.dataset, grid.baseline(name))
    if row is None or base is None:
        return Cell(NOTHING)
    if column.key in METRICS and column.key != "miou":
        return effect_cell([row[kind][column.key] - base[kind][column.key]], 0)
    columns = grid.any["columns"]
    images = grid.results[model, column.dataset]["done"]
    count = row["groups"][column.key]["pairs"] if columns == "groups" else images
    return effect_cell(_entry(row, column, columns, kind)["effect"], count)


def _paper(grid: ResultGrid, model: str, name: str, column: Column) -> float | None:
    """The paper's number of the same model, row and column."""
    if grid.spec is None or grid.spec.extends:
        return None
    keys = column.paper_keys(grid.any["columns"])
    return grid.spec.paper_number(model, name, *keys)


def _paper_cell(grid: ResultGrid, model: str, name: str, column: Column) -> Cell:
    number, row = _paper(grid, model, name, column), grid.row(model, column.dataset, name)
    if number is None:
        return Cell(NOTHING)
    value = _entry(row, column, grid.any["columns"], "oracle")["value"] if row else None
    return Cell(f"{number:.2f}" + ("" if value is None else f" ({signed(value - number)})"))


def _paper_effect(grid: ResultGrid, model: str, name: str, column: Column) -> str:
    """The paper's effect there; on a twin the range of all that it reports."""
    spec, row = grid.spec, grid.spec_row(name)
    if spec is None or row is None:
        return NOTHING
    if not spec.extends:
        effect = spec.paper_effect(model, row, *column.paper_keys(spec.columns))
        return NOTHING if effect is None else signed(effect)
    effects = list(_all_effects(spec, row, column))
    return f"{signed(min(effects))} to {signed(max(effects))}" if effects else NOTHING


def _all_effects(spec: Spec, row: SpecRow, column: Column) -> Iterator[float]:
    """A row's effects in the paper over all models and datasets, of the same metric or group."""
    for model, rows in spec.paper.items():
        datasets = [""] if spec.columns == "metrics" else rows.get(row.name, {})
        for dataset in datasets:
            keys = Column(dataset, column.key).paper_keys(spec.columns)
            effect = spec.paper_effect(model, row, *keys)
            if effect is not None:
                yield effect


def _partial(result: Result) -> bool:
    return not result["complete"] or result["limit"] is not None


def _marks(grid: ResultGrid, kind: str) -> tuple[str, ...]:
    """What the mark at a cell means, below the first table."""
    return tuple(
        f"{MARK} {model} on {dataset}: {result['done']} images. {' '.join(warnings(result))}"
        for (model, dataset), result in grid.results.items()
        if _partial(result) and kind == "oracle"
    )
