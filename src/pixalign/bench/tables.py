"""Tables of results: one set for each spec, over the models and datasets that were run."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pixalign.bench.spec import FREQUENCIES, METRICS, MODELS, load_spec, spec_names
from pixalign.methods import METHODS

Result = Mapping[str, Any]  # a result.json, or a part of it
Point = Sequence[float | None]  # a value, and its interval's low and high end

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
RANGE = "The paper's range is over all its models and datasets, none of them these."
TITLES = {"miou": "mIoU", "precision": "precision", "f1": "F1"}
NOT_RUN, NOTHING, MARK = "not run", "–", "†"
OURS = "ours"  # the label of specs that stand for no table of the paper


@dataclass(frozen=True)
class Table:
    """A heading and lines of as many texts in Markdown, bold as `effect_text` says."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ResultGrid:
    """The results of one spec, by model and dataset, and the paper's numbers as in `Spec.paper`.

    ``rows`` have each row's "baseline", and whether it is "supervised", in the spec's order; those
    that were not run are among them.
    """

    results: Mapping[tuple[str, str], Result]
    paper: Mapping[tuple[str, ...], float]
    rows: Mapping[str, Result]
    models: Sequence[str]
    datasets: Sequence[str]

    @property
    def any(self) -> Result:
        """One of the results, for what they share."""
        return next(iter(self.results.values()))

    @property
    def twin(self) -> bool:
        """Whether the paper's numbers are of other datasets."""
        return self.any["extends"] is not None

    def places(self) -> dict[tuple[str, str], list[Place]]:
        """What the tables show side by side: by dataset and key, every model's every row."""
        rows = [row for result in self.results.values() for row in result["rows"].values()]
        levels = dict.fromkeys(level for row in rows for level in row["groups"] or ())
        kinds = {"metrics": METRICS, "frequency": FREQUENCIES, "groups": levels}
        columns = product(self.datasets, kinds.get(self.any["columns"], ("",)))
        return {
            column: [self._place(*line, *column) for line in product(self.models, self.rows)]
            for column in columns
        }

    def _place(self, model: str, name: str, dataset: str, key: str) -> Place:
        result = self.results.get((model, dataset), {})
        return Place(self, model, name, dataset, key, result, result.get("rows", {}).get(name, {}))

    def title(self, dataset: str, key: str) -> str:
        """The dataset if there are several, and the key."""
        name = TITLES.get(key, key)
        if not name:
            return dataset
        return f"{dataset} {name}" if len(self.datasets) > 1 else name

    def label(self, name: str) -> str:
        """A row's name, marked if its method reads the true masks."""
        return f"{name} (supervised)" if self.rows[name]["supervised"] else name


def result_grids(results: Sequence[Result]) -> list[ResultGrid]:
    """The results by spec, in the order of its name."""
    names = sorted({result["spec"] for result in results})
    return [_result_grid(name, [r for r in results if r["spec"] == name]) for name in names]


def _result_grid(name: str, results: Sequence[Result]) -> ResultGrid:
    """Rows and datasets in the order of the spec, models in that of the paper."""
    spec = load_spec(name) if name in spec_names() else None
    rows = spec.rows if spec else ()
    planned = {row.name: {"baseline": row.baseline, "supervised": row.supervised} for row in rows}
    known = ChainMap(*(result["rows"] for result in results), planned)
    unknown = {"baseline": results[0]["baseline"], "supervised": False}
    there = [row for result in results for row in (*result["rows"], *result["missing"])]
    by_place = {(result["model"]["name"], result["dataset"]): result for result in results}
    models = _in_order({model for model, _ in by_place}, MODELS)
    datasets = _in_order({dataset for _, dataset in by_place}, spec.datasets if spec else ())
    return ResultGrid(
        results={
            place: by_place[place] for place in product(models, datasets) if place in by_place
        },
        paper=spec.paper if spec else {},
        rows={row: known.get(row, unknown) for row in (*planned, *there) if row in there},
        models=models,
        datasets=datasets,
    )


def _in_order(names: set[str], first: Iterable[str]) -> list[str]:
    return [*(name for name in first if name in names), *sorted(names.difference(first))]


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
    written = [
        "| " + " | ".join(_plain(text).replace("|", "\\|") for text in line) + " |"
        for line in (table.head, *table.rows)
    ]
    written.insert(1, "|" + "---|" * len(table.head))
    notes = (f"\n{_plain(note)}" for note in table.notes)
    return "\n".join([f"{_plain(table.title)}:", "", *written, *notes])


def _plain(text: str) -> str:
    """A text in which nothing is HTML."""
    return text.replace("<", "&lt;")


def markdown_page(results: Sequence[Result], level: int = 2) -> str:
    """The tables of all specs as Markdown, with headings of that level."""
    parts = []
    for grid in result_grids(results):
        about = grid.any
        heading = f"{'#' * level} {_plain(about['title'])}"
        source = "" if about["label"] == OURS else f", {_plain(about['label'])} in the paper"
        parts.append(f"{heading}\n\n`{_plain(about['spec'])}`{source}.")
        parts += [markdown(table) for table in result_tables(grid)]
        parts += (
            ["\n".join(f"- {_plain(note)}" for note in about["notes"])] if about["notes"] else []
        )
    return "\n\n".join(parts) + "\n" if parts else ""


def point(entry: Result) -> Point:
    """[value, low, high] of a row's figures or of a group in it."""
    value = entry.get("iou", entry.get("miou"))
    return [value, *(entry.get(end, entry.get(f"miou_{end}")) for end in ("low", "high"))]


def format_points(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """ "76.6 (76.0–76.9)"; without an interval "76.6"."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if low is None or high is None else f"{value:.1f} ({low:.1f}–{high:.1f})"


def signed(value: float) -> str:
    """ "+0.36", with a true minus sign, and "0.00"."""
    text = f"{value:+.2f}".replace("-", "−")
    return text if text.strip("+−0.") else "0.00"


def effect_text(effect: Point | None, count: int) -> str:
    """ "+0.36 (+0.22 to +0.52)", bold where 0 is outside and ``count`` is `ENOUGH`."""
    value, low, high = (*(effect or ()), None, None, None)[:3]
    if value is None:
        return NOTHING
    if low is None or high is None:
        return signed(value)
    text = f"{signed(value)} ({signed(low)} to {signed(high)})"
    return f"**{text}**" if count >= ENOUGH and (low > 0 or high < 0) else text


@dataclass(frozen=True, eq=False)
class Place:
    """A row of a model on a dataset, and what was found there: empty where it was not run.

    ``key`` is a metric, a group of frequency or a dial's level, or empty.
    """

    grid: ResultGrid
    model: str
    name: str
    dataset: str
    key: str
    result: Result
    row: Result

    def figures(self, kind: str) -> tuple[Point, Point | None]:
        """The row's value and its effect, of precision and F1 without intervals."""
        columns, key, row = self.grid.any["columns"], self.key, self.row
        if not row:
            return [None], None
        if columns in ("frequency", "groups"):
            entry = (row[columns] or {}).get(key, {})
            entry = entry.get("fixed", {}) if kind == "fixed" else entry
            return point(entry), entry.get("effect")
        if key in ("", "miou"):
            return point(row[kind]), row["effect"][kind]
        base = self.result["rows"].get(row["baseline"])
        return [row[kind][key]], [row[kind][key] - base[kind][key]] if base else None

    def value(self, kind: str) -> str:
        """Its value with the interval; at the fixed threshold also that."""
        if not self.row:
            return NOT_RUN if self.result.get("done") else NOTHING
        text = format_points(*self.figures(kind)[0])
        if kind == "fixed" and self.key in ("", "miou"):
            text += f" at {self.row['fixed']['threshold']:.2f}"
        return text + (MARK if _partial(self.result) else "")

    def effect(self, kind: str) -> str:
        """The row minus its baseline."""
        level = (self.row.get("groups") or {}).get(self.key, {})
        return effect_text(self.figures(kind)[1], level.get("pairs", self.result.get("done", 0)))

    @property
    def _place(self) -> tuple[str, ...]:
        """Model and column, as the paper's numbers have them."""
        columns = {"datasets": (self.dataset,), "metrics": (self.key,)}
        return self.model, *columns.get(self.grid.any["columns"], (self.dataset, self.key))

    @property
    def paper(self) -> float | None:
        """The paper's number of the same model, row and column."""
        model, *column = self._place
        return None if self.grid.twin else self.grid.paper.get((model, self.name, *column))

    def beside_paper(self) -> str:
        """The paper's number, and ours minus it."""
        number, value = self.paper, self.figures("oracle")[0][0]
        if number is None:
            return NOTHING
        return f"{number:.2f}" + ("" if value is None else f" ({signed(value - number)})")

    def paper_effect(self) -> str:
        """The paper's effect there; on a twin the range over all its models and datasets."""
        paper, twin, effects = self.grid.paper, self.grid.twin, []
        for (model, name, *column), number in paper.items():
            here = self.key in ("", column[-1]) if twin else (model, *column) == self._place
            base = (model, self.row["baseline"], *column)
            if name == self.name and here and base in paper:
                effects.append(number - paper[base])
        ends = [min(effects), max(effects)] if effects and twin else effects
        return " to ".join(map(signed, ends)) or NOTHING


def _values(grid: ResultGrid, kind: str) -> Table:
    """Model by row; the paper's numbers, which are of the best thresholds, beside these."""
    head = ["Model", "Row"]
    lines = [(model, grid.label(name)) for model in grid.models for name in grid.rows]
    columns: list[Sequence[str]] = list(zip(*lines, strict=True))
    for column, places in grid.places().items():
        head.append(grid.title(*column))
        columns.append([place.value(kind) for place in places])
        if kind == "oracle" and any(place.paper is not None for place in places):
            head.append("Paper (ours minus it)")
            columns.append([place.beside_paper() for place in places])
    title = f"{MEASURES[grid.any['columns']]}, {THRESHOLD[kind]}"
    return Table(title, tuple(head), tuple(zip(*columns, strict=True)), _marks(grid, kind))


def _seconds(grid: ResultGrid) -> Table:
    """What an image costs, where methods are compared; no rows where only settings are."""
    results = grid.results.values()
    used = {row["method"] for result in results for row in result["rows"].values()}
    timed = any(result.get("row_seconds") for result in results)
    compared = timed and not all(METHODS[name].separable for name in used)
    rows = []
    for model, name in product(grid.models, grid.rows) if compared else ():
        runs = [grid.results.get((model, dataset), {}) for dataset in grid.datasets]
        spent = [result.get("row_seconds", {}).get(name) for result in runs]
        texts = [NOTHING if seconds is None else f"{seconds:.3g}" for seconds in spent]
        rows.append((model, grid.label(name), *texts))
    hardware = sorted({result["device"] for result in results})
    title = f"Seconds an image on {', '.join(hardware)}, {SECONDS}"
    return Table(title, ("Model", "Row", *grid.datasets), tuple(rows))


def _effects(grid: ResultGrid) -> Table:
    """Each row minus its baseline, at both kinds of threshold, and the paper's difference."""
    lines = zip(*grid.places().values(), strict=True)
    places = [x for line in lines for x in line if x.row and x.row["baseline"] != x.name]
    head: tuple[str, ...] = ("Model", "Row", "Minus", "On", "Best threshold", "Fixed threshold")
    rows = [
        (
            *(x.model, grid.label(x.name), x.row["baseline"], grid.title(x.dataset, x.key)),
            *map(x.effect, THRESHOLD),
        )
        for x in places
    ]
    paper = [place.paper_effect() for place in places]
    title = f"Each row minus its baseline in points, {BOLD}"
    if all(text == NOTHING for text in paper):
        return Table(title, head, tuple(rows))
    beside = tuple((*row, text) for row, text in zip(rows, paper, strict=True))
    head = (*head, "Paper: range" if grid.twin else "Paper")
    return Table(title, head, beside, (RANGE,) if grid.twin else ())


def _dials(grid: ResultGrid, kind: str) -> Table:
    """Model by dial and level: each row's value, then the effects."""
    bases = {name: row["baseline"] for name, row in grid.rows.items() if row["baseline"] != name}
    differences = [f"{grid.label(name)} minus {base}" for name, base in bases.items()]
    head = ("Model", "Dial", "Pairs", *map(grid.label, grid.rows), *differences)
    rows = []
    for model, ((_, level), column) in product(grid.models, grid.places().items()):
        places = [place for place in column if place.model == model]
        values = [place.value(kind) for place in places]
        effects = [place.effect(kind) for place in places if place.name in bases]
        there = [place.row["groups"][level]["pairs"] for place in places if place.row]
        rows.append((model, level, str(next(iter(there), 0)), *values, *effects))
    title = f"{MEASURES['groups']}, {THRESHOLD[kind]}; {BOLD}"
    return Table(title, head, tuple(rows), _marks(grid, kind))


def _partial(result: Result) -> bool:
    return not result["complete"] or result["limit"] is not None


def _marks(grid: ResultGrid, kind: str) -> tuple[str, ...]:
    """What the mark at a cell means, below the first table."""
    return tuple(
        f"{MARK} {model} on {dataset}: {result['done']} images. {' '.join(warnings(result))}"
        for (model, dataset), result in grid.results.items()
        if _partial(result) and kind == "oracle"
    )
