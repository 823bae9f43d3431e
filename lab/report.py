"""docs/lab.md and its figures, rendered from the committed result files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lab.editing import summarise_edits
from lab.generation import FIGURES
from lab.plots import STEPS, filters, passes, reliability, seconds
from lab.study import EXPONENTS, draw_study, read_study, strength_label
from pixalign.audit.drawing import LEAKED, NEGLECTED
from pixalign.audit.figures import SCORES
from pixalign.audit.report import NAMES, number
from pixalign.backbones.locations import LAB_MODELS
from pixalign.bench.generation_study import summarise_generation
from pixalign.bench.store import RESULT
from pixalign.bench.summary import read_result
from pixalign.bench.tables import effect_text
from pixalign.core.files import make_folder, write_bytes
from pixalign.pictures.pages import environment

# Of an audit what the page of an early checkpoint shows.
FIGURED = (
    "miou_attention", "miou_elbo", "miou_dense", "sure", "blind", "confused", "absent",
    "agreement", "overlap", "confidence", "belief",
)  # fmt: skip


def read_results(folder: Path) -> dict[str, Any]:
    """What docs/lab.md is rendered from, by name; ``folder`` is docs/lab.

    "young" holds figures of early checkpoints that nobody can measure again, "earlier" those of
    the first version's study of the families.
    """
    study = read_study(folder / "study", folder.parent / "benchmark")
    choices = {name: folder / "families" / f"{name}-choice.json" for name in LAB_MODELS}
    return {
        "study": study,
        "own": strength_label(study[EXPONENTS]["embedded"]),
        "young": _json(folder / "study" / "young.json"),
        "quality": _json(folder / "study" / "quality.json"),
        "gates": _json(folder / "gates.json"),
        "choices": {name: _json(path) for name, path in choices.items() if path.is_file()},
        "earlier": _json(folder / "families" / "earlier.json"),
        "trained": last_lines(folder / "families"),
        "classifier": last_lines(folder)["classifier"],
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def last_lines(folder: Path) -> dict[str, Any]:
    """The last figures of each training run whose log is there."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        for path in sorted(folder.glob("*.jsonl"))
    }


def report(docs: Path, *, figures: bool = True) -> list[Path]:
    """Render ``docs``/lab.md from its template and ``docs``/lab/study, with the figures, and the
    documents of generation and editing from the results beside them; what was written."""
    results = read_results(docs / "lab")
    if figures:
        draw_study(results["study"], docs / "lab" / "study")
        about = read_method(docs / "method")
        plots = {"passes": about["steps"], "reliability": about["trust"]}
        for (name, found), draw in zip(plots.items(), (passes, reliability), strict=True):
            if found:
                write_bytes(make_folder(docs / "method") / f"{name}.png", draw(found).png)
        timed = docs / "speed" / "sd15-classes.json"
        if timed.is_file() and "sd2" in about["steps"]:
            image = seconds(_json(timed), about["steps"]["sd2"]).png
            write_bytes(docs / "speed" / "classes.png", image)
        drawn = read_synthetic(docs / "synthetic")["models"]
        if drawn:
            write_bytes(docs / "synthetic" / "filters.png", filters(drawn).png)
    values = {"lab": results}
    for name, read in TASKS.items():
        if (docs / f"{name}.md.j2").is_file():
            values[name] = read(docs / name)
    return [
        write_bytes(docs / f"{name}.md", render(docs / f"{name}.md.j2", own).encode())
        for name, own in values.items()
    ]


def read_generation(folder: Path) -> dict[str, Any]:
    """By model the figures of `python -m lab generation`, and how many missing objects return."""
    paths = {name: folder / f"{name}.json" for name in LAB_MODELS}
    found = {name: _json(path) for name, path in paths.items() if path.is_file()}
    for result in found.values():
        result |= {"returned": returned(result), "sets": summarise_generation(result, FIGURES)}
    return {"models": found, "classifier": last_lines(folder.parent / "lab")["classifier"]}


def returned(result: Mapping[str, Any], label: str = "elbo") -> dict[str, int]:
    """Over all sets: objects that plain sampling lacks and a method draws, and the other way.

    "redrawn" are those missing ones that plain sampling draws with the prompt's next seed: what
    mere change returns.
    """
    counts = {"asked": 0, "missing": 0, "returned": 0, "lost": 0, "redrawn": 0}
    seeds = result["seeds"]
    for rows in result["sets"].values():
        if label not in rows:  # a run that was stopped
            continue
        plain = rows["plain"]["found"]
        again = [plain[n - n % seeds + (n + 1) % seeds] for n in range(len(plain))]
        before = "".join(plain)
        moves = list(zip(before, "".join(rows[label]["found"]), strict=True))
        counts["asked"] += len(before)
        counts["missing"] += before.count("0")
        counts["returned"] += moves.count(("0", "1"))
        counts["lost"] += moves.count(("1", "0"))
        counts["redrawn"] += list(zip(before, "".join(again), strict=True)).count(("0", "1"))
    return counts


def read_editing(folder: Path) -> dict[str, Any]:
    """The figures of `python -m lab editing`, of a model that aligns less well by itself ("weak"),
    and of the inversion's memory."""
    strong, weak = (
        {**_json(path), **summarise_edits(_json(path))}
        for path in (folder / "sd1.json", folder / "sd2.json")
    )
    return {**strong, "weak": weak, "memory": _json(folder / "memory.json")}


def read_method(folder: Path) -> dict[str, Any]:
    """By model the tables of the evidence (docs/benchmark), and what `python -m lab trust` says."""
    tables: dict[str, dict[str, Any]] = {"lab-evidence": {}, "lab-evidence-controls": {}, STEPS: {}}
    for path in sorted((folder.parent / "benchmark").glob(f"lab-evidence*/{RESULT}")):
        result = read_result(path)
        tables[result["spec"]][result["model"]["name"].removeprefix("lab-")] = result
    order = ("embedded", "sd2", "sdxl", "sd3", "flux")
    trust = {name: folder / f"{name.replace('embedded', 'sd1')}.json" for name in order}
    return {
        "models": [name for name in order if name in tables["lab-evidence"]],
        "evidence": tables["lab-evidence"],
        "controls": tables["lab-evidence-controls"],
        "steps": {name: tables[STEPS][name] for name in order if name in tables[STEPS]},
        "trust": {name: _json(path) for name, path in trust.items() if path.is_file()},
    }


def read_synthetic(folder: Path) -> dict[str, Any]:
    """By model what `python -m lab synthetic` says of filters, and what
    examples/training/synthetic_training.py of the networks that learnt from drawn pictures."""
    names = [name for name in LAB_MODELS if (folder / f"{name}.json").is_file()]
    return {
        "models": {name: _json(folder / f"{name}.json") for name in names},
        "training": {p.stem: _json(p) for p in sorted((folder / "training").glob("*.json"))},
        "classifier": last_lines(folder.parent / "lab")["classifier"],
    }


def read_audit(folder: Path) -> dict[str, Any]:
    """What `python -m lab audit` says of each model, and the score that ranks classes best on val
    scenes, in the mean over the models."""
    paths = {name: folder / f"{name}.json" for name in LAB_MODELS}
    models = {name: _json(path) for name, path in paths.items() if path.is_file()}
    ranked = [name for name, record in models.items() if "ranking" in record]
    drawn = [name for name, record in models.items() if "prompts" in record]
    means, tested = (
        {
            score: fmean(models[name]["ranking"][split]["iou_dense"][score][0] for name in ranked)
            for score in SCORES
        }
        for split in ("val", "test")
    )
    first = next(iter(models[drawn[0]]["prompts"].values()))
    return {
        "models": models,
        "names": {name: f"`lab:{name}`" for name in models} | {"sd1": "the embedded model"},
        "ranked": ranked,
        "drawn": drawn,
        "scores": SCORES,
        "means": means,
        "tested": tested,
        "chosen": max(means, key=lambda score: means[score]),
        "others": sorted(means, key=lambda score: -means[score])[1:],
        "steps": first["steps"],
        "bound": NEGLECTED,
        "leaked": 100 * LEAKED,
        "tried": _json(folder / "tried.json"),
        "checkpoint": _json(folder / "checkpoint.json"),
        "figures": {name: NAMES[name] for name in FIGURED},
    }


def read_speed(folder: Path) -> dict[str, Any]:
    """What benchmarks/speed.py says of each architecture; ``row`` is SD1.5's, by name.

    "numbers" is what benchmarks/number_types.py says, by model or architecture, and "agreeing", by
    type, the share of pairs of classes in order on the model where it is least. "memory" are
    records of speed.py that were made for their peaks, "passes" those of benchmarks/passes.py.
    """
    records, numbers, memory, passes_of = (
        {path.stem: _json(path) for path in sorted(place.glob("*.json"))}
        for place in (folder, *(folder / name for name in ("numbers", "memory", "passes")))
    )
    agreeing: dict[str, float] = {}
    for record in numbers.values():
        for kind, row in record["rows"].items():
            if "order" in row:
                share = row["order"]["all"]["value"]
                agreeing[kind] = min(share, agreeing.get(kind, share))
    return {
        "records": records,
        "row": {row["name"]: row for row in records["sd15"]["rows"]},
        "numbers": numbers,
        "agreeing": agreeing,
        "memory": memory,
        "passes": {name: passes_of[name] for name in LAB_MODELS if name in passes_of},
    }


TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "generation": read_generation,
    "editing": read_editing,
    "method": read_method,
    "synthetic": read_synthetic,
    "audit": read_audit,
    "speed": read_speed,
}


def render(template: Path, values: Mapping[str, Any]) -> str:
    """The document as text."""
    templates = environment(html=False)
    filters = {
        "points": points, "share": points, "signed": signed, "correlation": correlation,
        "span": span, "figure": number,
    }  # fmt: skip
    templates.filters.update(filters)
    return templates.from_string(template.read_text(encoding="utf-8")).render(**values)


def points(entry: Mapping[str, Any]) -> str:
    """ "76.6 (76.0 to 76.9)" of a share or a mIoU; without an interval where there is none."""
    low, high = (entry.get(f"miou_{end}", entry.get(end)) for end in ("low", "high"))
    text = f"{entry.get('value', entry.get('miou')):.1f}"
    return text if low is None or high is None else f"{text} ({low:.1f} to {high:.1f})"


def span(values: Sequence[float | None], digits: int = 0) -> str:
    """ "70 (38 to 100)" of [value, low, high]; a dash for what could not be measured."""
    if values[0] is None:
        return "–"
    value, low, high = (f"{x:.{digits}f}" for x in values)
    return f"{value} ({low} to {high})"


def signed(entry: Mapping[str, Any] | list[float | None] | None) -> str:
    """ "+0.36 (+0.22 to +0.52)", with a true minus sign, of [value, low, high] or their mapping."""
    values = [entry["value"], entry["low"], entry["high"]] if isinstance(entry, Mapping) else entry
    return effect_text(values, 0)


def correlation(entry: Sequence[float]) -> str:
    """ "−.54 (−.57 to −.50)"."""
    value, low, high = (f"{x:+.2f}".replace("0.", ".").replace("-", "−") for x in entry)
    return f"{value} ({low} to {high})"
