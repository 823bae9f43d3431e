"""docs/lab.md and its figures, rendered from the committed result files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.figures import draw_all, own_label
from pixalign.backbones.locations import LAB_MODELS
from pixalign.bench.editing_study import summary as retouched
from pixalign.bench.generation_study import summary as composed
from pixalign.core.files import write_bytes
from pixalign.pictures.pages import environment

RESULTS = ("test", "val", "stress", "choice", "quality")


def read_results(folder: Path) -> dict[str, Any]:
    """The result files of a docs folder by name; "young" holds those of early checkpoints."""
    found: dict[str, Any] = {}
    for name in RESULTS:
        path = folder / f"{name}.json"
        if not path.is_file():
            raise FileNotFoundError(f"{str(path)!r} is missing; `pixalign lab study` writes it")
        found[name] = json.loads(path.read_text(encoding="utf-8"))
    found["gates"] = json.loads((folder.parent / "gates.json").read_text(encoding="utf-8"))
    young = sorted(folder.glob("young-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    found["young"] = {
        f"{int(path.stem.split('-')[1]):,}": json.loads(path.read_text(encoding="utf-8"))
        for path in young
    }
    found["families"] = read_families(folder.parent / "families")
    found["trained"] = last_lines(folder.parent / "families")
    found["classifier"] = last_lines(folder.parent)["classifier"]
    found["own"] = own_label(found["test"])
    return found


def read_families(folder: Path) -> dict[str, Any]:
    """By family its study, which `pixalign lab families` writes, with its choice of settings."""
    found = {}
    for name in LAB_MODELS:
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = {
                "study": json.loads(path.read_text(encoding="utf-8")),
                "choice": _optional(folder / f"{name}-choice.json"),
            }
    return found


def _optional(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def last_lines(folder: Path) -> dict[str, Any]:
    """The last figures of each training run whose log is there."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        for path in sorted(folder.glob("*.jsonl"))
    }


def report(docs: Path, *, figures: bool = True) -> list[Path]:
    """Render ``docs``/lab.md from its template and ``docs``/lab/study, with the figures, and the
    documents of generation and editing from the results beside them; what was written."""
    results = read_results(docs / "lab" / "study")
    if figures:
        draw_all(results, docs / "lab" / "study")
    values = {"lab": results}
    for name, read in TASKS.items():
        if (docs / f"{name}.md.j2").is_file():
            values[name] = read(docs / name)
    return [
        write_bytes(docs / f"{name}.md", render(docs / f"{name}.md.j2", own).encode())
        for name, own in values.items()
    ]


def read_generation(folder: Path) -> dict[str, Any]:
    """By model the figures of `pixalign bench generation`, and how many missing objects return."""
    found = {}
    for name in LAB_MODELS:
        result = _optional(folder / f"{name}.json")
        if result is not None:
            about = {key: value for key, value in result.items() if key != "sets"}
            sets = {"sets": composed.summarise(result), "returned": composed.returned(result)}
            found[name] = {**about, **sets}
    return {"models": found, "classifier": last_lines(folder.parent / "lab")["classifier"]}


def read_editing(folder: Path) -> dict[str, Any]:
    """The figures of `pixalign bench editing`, and of the inversion's memory."""
    result = json.loads((folder / "sd1.json").read_text(encoding="utf-8"))
    about = {key: value for key, value in result.items() if key not in ("rows", "inversions")}
    memory = json.loads((folder / "memory.json").read_text(encoding="utf-8"))
    return {**about, **retouched.summarise(result), "memory": memory}


TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "generation": read_generation,
    "editing": read_editing,
}


def render(template: Path, values: Mapping[str, Any]) -> str:
    """The document as text."""
    templates = environment(html=False)
    templates.filters.update(points=points, signed=signed, correlation=correlation, share=share)
    return templates.from_string(template.read_text(encoding="utf-8")).render(**values)


def share(entry: Mapping[str, Any]) -> str:
    """ "81.4 (79.0 to 83.5)"."""
    return f"{entry['value']:.1f} ({entry['low']:.1f} to {entry['high']:.1f})"


def points(entry: Mapping[str, Any]) -> str:
    """ "76.6 (76.0 to 76.9)"."""
    return f"{entry['miou']:.1f} ({entry['miou_low']:.1f} to {entry['miou_high']:.1f})"


def signed(entry: Mapping[str, Any]) -> str:
    """ "+0.36 (+0.22 to +0.52)", with a true minus sign."""
    text = f"{entry['value']:+.2f} ({entry['low']:+.2f} to {entry['high']:+.2f})"
    return text.replace("-", "−")


def correlation(entry: Mapping[str, Any]) -> str:
    """ "−.54 (−.57 to −.50)"."""
    values = (entry["value"], entry["low"], entry["high"])
    value, low, high = (f"{v:+.2f}".replace("0.", ".").replace("-", "−") for v in values)
    return f"{value} ({low} to {high})"
