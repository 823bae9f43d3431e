"""What results become: report.html and tables.md of a folder of runs, and docs/benchmark.md."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pixalign.bench.examples import FOLDER as PICTURES
from pixalign.bench.examples import LIST
from pixalign.bench.plots import plots
from pixalign.bench.store import RESULT, find_runs
from pixalign.bench.summary import read_result, write_result
from pixalign.bench.tables import (
    NOTHING,
    Result,
    format_points,
    markdown_page,
    result_grids,
    result_tables,
    signed,
    warnings,
)
from pixalign.config import PRESETS, AlignConfig
from pixalign.core.files import make_folder, plain_name, read_json, read_text, write_text
from pixalign.methods import METHODS, method_of
from pixalign.pictures.pages import data_uri, environment
from pixalign.pictures.reading import read_image


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
    shown = {
        (result["spec"], result["model"]["name"], result["dataset"]): _run_part(result, run.folder)
        for result, run in zip(results, runs, strict=True)
    }
    parts = [
        {
            "grid": grid,
            "tables": result_tables(grid),
            "runs": [shown[grid.any["spec"], *place] for place in grid.results],
        }
        for grid in result_grids(results)
    ]
    write_text(where / "tables.md", f"# Benchmark\n\n{markdown_page(results)}")
    source = resources.files("pixalign.bench").joinpath("report.html.j2").read_text("utf-8")
    template = environment(html=True, uri=data_uri, duration=duration).from_string(source)
    return write_text(where / "report.html", template.render(parts=parts))


def render_benchmark(results: Path, template: Path) -> str:
    """docs/benchmark.md as text, with the tables of ``results``/*/result.json, if there are any."""
    from jinja2 import TemplateError

    known = [read_result(path) for path in sorted(results.glob(f"*/{RESULT}"))]
    try:
        page = environment(html=False).from_string(read_text(template))
    except TemplateError as error:
        raise ValueError(f"{str(template)!r} is no template: {error}") from error
    tables = markdown_page(known, level=3).rstrip()
    try:
        return page.render(results=known, tables=tables, warnings=warnings)
    except (TemplateError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{str(template)!r} cannot be filled: {error}") from error


def _run_part(result: Result, folder: Path) -> dict[str, Any]:
    """What the page shows of one run."""
    return {
        "result": result,
        "warnings": warnings(result),
        "plots": plots(result),
        "pictures": _pictures(folder / PICTURES),
        "configs": {
            name: describe_config(row["config"], result["model"])
            for name, row in result["rows"].items()
        },
        "classes": _classes(result),
    }


def _pictures(folder: Path) -> list[dict[str, Any]]:
    """What pictures.json lists, and the pictures themselves; none without that file."""
    path = folder / LIST
    if not path.is_file():
        return []
    try:
        return [
            {key: record[key] for key in ("kind", "key", "miou", "classes")}
            | {"picture": read_image(folder / plain_name(record["file"]))}
            for record in read_json(path)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error


def describe_config(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The preset that is nearest on this model, and what differs: "default, gamma = 0.5".

    Where the method differs, presets have what that method leaves them.
    """
    changes = {}
    for name in PRESETS:
        preset = AlignConfig.preset(name)
        own = method_of(preset).name
        free = dataclasses.replace(preset, method=None, calibrate=None)
        usual = METHODS[config["method"]].configured(free)
        settings = usual.resolved(model["family"], model["settings"]).to_dict()
        plain = json.loads(json.dumps(settings | {"method": own}))
        changes[name] = {key: value for key, value in config.items() if plain.get(key) != value}
    nearest = min(changes, key=lambda name: len(changes[name]))
    texts = {
        key: f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
        for key, value in changes[nearest].items()
    }
    return ", ".join([nearest, *(f"{key} = {text}" for key, text in texts.items())])


def _classes(result: Result) -> list[tuple[str, ...]]:
    """Name, IoU of the baseline, IoU of the row to look at, difference; largest gain first."""
    rows, focus = result["rows"], result["focus"]
    if focus is None:
        return []
    after, base = rows[focus]["classes"], rows[focus]["baseline"]
    before = rows[base]["classes"] if base != focus and base in rows else {}
    changes = {name: iou - before[name] for name, iou in after.items() if name in before}
    return [
        (
            name,
            format_points(before.get(name)),
            format_points(after[name]),
            signed(changes[name]) if name in changes else NOTHING,
        )
        for name in sorted(after, key=lambda name: (-changes.get(name, 0), name))
    ]


def duration(seconds: float) -> str:
    """ "2 h 5 min", "3 min 20 s", "12.3 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
