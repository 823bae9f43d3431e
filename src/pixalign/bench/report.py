"""report.html and tables.md of a folder of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from PIL import Image

from pixalign.bench.plots import Plot, plots
from pixalign.bench.result_grid import Result, ResultGrid, result_grids
from pixalign.bench.store import Run, find_runs
from pixalign.bench.summary import write_result
from pixalign.bench.tables import (
    Table,
    format_points,
    markdown_page,
    result_tables,
    signed,
    warnings,
)
from pixalign.config import PRESETS, AlignConfig
from pixalign.core.files import make_folder, write_bytes
from pixalign.pictures.pages import data_uri, environment
from pixalign.pictures.saving import encoded

PAGE, TABLES = "report.html", "tables.md"
PICTURES = "pictures"


@dataclass(frozen=True)
class Picture:
    """One of the best or worst images; ``data`` is a JPEG."""

    kind: str
    key: str
    miou: float | None
    classes: tuple[str, ...]
    data: bytes


@dataclass(frozen=True, eq=False)
class RunPart:
    """What the page shows of one run."""

    result: Result
    warnings: tuple[str, ...]
    plots: tuple[Plot, ...]
    pictures: tuple[Picture, ...]
    configs: Mapping[str, str]
    classes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class SpecPart:
    """What the page shows of one spec."""

    grid: ResultGrid
    tables: tuple[Table, ...]
    runs: tuple[RunPart, ...]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write report.html and tables.md of all runs in a folder, into it or into ``out``.

    Runs that have new images are summarised first.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{str(folder)!r} is no folder; allowed: what `pixalign bench run --out` made, a "
            "folder of runs with a run.json each"
        )
    runs = find_runs(folder)
    where = folder if out is None else make_folder(out)
    results = [write_result(run) for run in runs]
    folders = {_identity(result): run for result, run in zip(results, runs, strict=True)}
    parts = [_spec_part(grid, folders) for grid in result_grids(results)]
    text = f"# Benchmark\n\n{markdown_page(results)}"
    write_bytes(where / TABLES, text.encode())
    return write_bytes(where / PAGE, _page(parts).encode())


def _identity(result: Result) -> tuple[str, str, str]:
    return result["spec"], result["model"]["name"], result["dataset"]


def _spec_part(grid: ResultGrid, folders: Mapping[tuple[str, str, str], Run]) -> SpecPart:
    order = [(model, dataset) for model in grid.models for dataset in grid.datasets]
    results = [grid.results[pair] for pair in order if pair in grid.results]
    return SpecPart(
        grid=grid,
        tables=tuple(result_tables(grid)),
        runs=tuple(_run_part(result, folders[_identity(result)].folder) for result in results),
    )


def _run_part(result: Result, folder: Path) -> RunPart:
    return RunPart(
        result=result,
        warnings=tuple(warnings(result)),
        plots=tuple(plots(result)),
        pictures=tuple(read_pictures(folder / PICTURES)),
        configs={
            name: describe_config(row["config"], result["model"])
            for name, row in result["rows"].items()
        },
        classes=tuple(_classes(result)),
    )


def read_pictures(folder: Path) -> list[Picture]:
    """The pictures that pictures.json lists, best first; none without that file."""
    path = folder / "pictures.json"
    if not path.is_file():
        return []
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        found = [
            Picture(
                kind=record["kind"],
                key=record["key"],
                miou=record["miou"],
                classes=tuple(record["classes"]),
                data=_jpeg(folder / record["file"]),
            )
            for record in records
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error
    return sorted(found, key=lambda picture: picture.kind)


def _jpeg(path: Path) -> bytes:
    """A picture at a third of its PNG's size or less."""
    with Image.open(path) as image:
        return encoded(image.convert("RGB"), "jpeg")


def describe_config(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The preset that is nearest on this model, and what differs: "default, gamma = 0.5"."""
    nearest: tuple[str, dict[str, Any]] | None = None
    for name in PRESETS:
        preset = AlignConfig.preset(name).resolved(model["family"], model["settings"]).to_dict()
        plain = json.loads(json.dumps(preset))
        differs = {key: value for key, value in config.items() if plain.get(key) != value}
        if nearest is None or len(differs) < len(nearest[1]):
            nearest = name, differs
    assert nearest is not None
    return ", ".join([nearest[0], *(f"{key} = {_short(x)}" for key, x in nearest[1].items())])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def _classes(result: Result) -> list[tuple[str, ...]]:
    """Name, IoU of the baseline, IoU of the row to look at, difference; largest gain first."""
    if result["focus"] is None:
        return []
    after = result["rows"][result["focus"]]
    base = after["baseline"] if after["baseline"] != result["focus"] else None
    before = result["rows"].get(base, {}).get("classes", {})
    changes = {name: iou - before[name] for name, iou in after["classes"].items() if name in before}
    order = sorted(after["classes"], key=lambda name: (-changes.get(name, 0), name))
    return [
        (
            name,
            format_points(before.get(name)),
            format_points(after["classes"][name]),
            signed(changes[name]) if name in changes else "–",
        )
        for name in order
    ]


def _page(parts: list[SpecPart]) -> str:
    source = resources.files("pixalign.bench").joinpath("report.html.j2").read_text("utf-8")
    templates = environment(html=True, uri=data_uri, duration=duration)
    return templates.from_string(source).render(parts=parts)


def duration(seconds: float) -> str:
    """ "2 h 5 min", "3 min 20 s", "12.3 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
