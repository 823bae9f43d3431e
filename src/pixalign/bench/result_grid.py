"""The results of each spec side by side: by model, dataset and row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pixalign.bench.spec import (
    FREQUENCIES,
    METRICS,
    MODELS,
    Spec,
    SpecRow,
    load_spec,
    spec_names,
)

Result = Mapping[str, Any]  # a result.json


@dataclass(frozen=True)
class Column:
    """A dataset; ``key`` is a metric, a group of frequency or a dial's level in it, or empty."""

    dataset: str
    key: str = ""

    def paper_keys(self, columns: str) -> tuple[str, ...]:
        """Where the paper's number stands below its model and row."""
        both = {"datasets": (self.dataset,), "metrics": (self.key,)}
        return both.get(columns, (self.dataset, self.key))


@dataclass(frozen=True, eq=False)
class ResultGrid:
    """The results of one spec, by model and dataset; ``spec`` is None if it did not come with us.

    ``names`` are the rows in the spec's order, those that were not run among them.
    """

    results: Mapping[tuple[str, str], Result]
    spec: Spec | None
    names: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]

    @property
    def any(self) -> Result:
        """One of the results, for what they share."""
        return next(iter(self.results.values()))

    def columns(self) -> list[Column]:
        """What the spec's tables show side by side."""
        kind = self.any["columns"]
        if kind == "groups":
            return [Column(dataset, level) for dataset in self.datasets for level in self.levels()]
        keys = {"metrics": METRICS, "frequency": FREQUENCIES}.get(kind, ("",))
        return [Column(dataset, key) for dataset in self.datasets for key in keys]

    def levels(self) -> list[str]:
        """The levels of all dials, in the order of the dataset."""
        rows = [row for result in self.results.values() for row in result["rows"].values()]
        return list(dict.fromkeys(level for row in rows for level in row["groups"] or ()))

    def row(self, model: str, dataset: str, name: str) -> Result | None:
        """A row's figures, if it was run there."""
        rows: Mapping[str, Result] = self.results.get((model, dataset), {}).get("rows", {})
        return rows.get(name)

    def spec_row(self, name: str) -> SpecRow | None:
        """The spec's own row."""
        rows = self.spec.rows if self.spec else ()
        return next((row for row in rows if row.name == name), None)

    def baseline(self, name: str) -> str:
        """The row that a row is compared with."""
        for result in self.results.values():
            if name in result["rows"]:
                return str(result["rows"][name]["baseline"])
        row = self.spec_row(name)
        return row.baseline if row else str(self.any["baseline"])

    def label(self, name: str) -> str:
        """A row's name, marked if its method reads the true masks."""
        row = self.spec_row(name)
        marks = [r["rows"][name]["supervised"] for r in self.results.values() if name in r["rows"]]
        supervised = marks[0] if marks else row is not None and row.supervised
        return f"{name} (supervised)" if supervised else name


def result_grids(results: Sequence[Result]) -> list[ResultGrid]:
    """The results by spec, in the order of its name."""
    grids = []
    for name in sorted({result["spec"] for result in results}):
        same = [result for result in results if result["spec"] == name]
        spec = load_spec(name) if name in spec_names() else None
        listed = [row.name for row in spec.rows] if spec else []
        rows = [row for result in same for row in (*result["rows"], *result["missing"])]
        order = {model: number for number, model in enumerate(MODELS)}
        names = {result["model"]["name"] for result in same}
        models = sorted(names, key=lambda model: (order.get(model, len(order)), model))
        datasets = [*(spec.datasets if spec else ()), *sorted({r["dataset"] for r in same})]
        there = {result["dataset"] for result in same}
        grids.append(
            ResultGrid(
                results={(result["model"]["name"], result["dataset"]): result for result in same},
                spec=spec,
                names=tuple(dict.fromkeys((*(n for n in listed if n in rows), *rows))),
                models=tuple(models),
                datasets=tuple(dict.fromkeys(name for name in datasets if name in there)),
            )
        )
    return grids
