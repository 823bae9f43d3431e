"""The study: does calibration help where the truth is known, and why? Runs of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

from lab.plots import groups, strengths
from pixalign.bench.command import run_specs
from pixalign.bench.plots import dials, effects
from pixalign.bench.store import RESULT
from pixalign.bench.summary import read_result
from pixalign.core.files import write_bytes
from pixalign.model import load

EXPONENTS, STRESS = "study-exponents", "study-stress"
FAMILIES = ("lab:sd2", "lab:sdxl", "lab:sd3")


# What docs/lab.md is rendered from, beside the embedded model's sweeps in docs/benchmark: a spec on
# a model, on so many scenes (of "lab-toy": a level).
RUNS = {
    f"{EXPONENTS}/embedded": 252,
    "study-presets/embedded": 60,
    f"{STRESS}/embedded": 8,
    **{f"{EXPONENTS}/{model}": 150 for model in FAMILIES},
    **{f"study-presets/{model}": 42 for model in FAMILIES},
}


def run_study(
    out: Path,
    *,
    only: Sequence[str] = (),
    limit: int | None = None,
    device: str = "auto",
    show: bool = True,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The runs whose name matches one of ``only``, each with at most ``limit`` scenes, in float32.

    Stopped at any moment, the same call goes on. Gives each run's folder and result.
    """
    chosen = [run for run in RUNS if not only or any(fnmatchcase(run, name) for name in only)]
    if not chosen:
        raise ValueError(f"only is {list(only)}; allowed: patterns of {', '.join(RUNS)}")
    loaded = cache(lambda model, where: load(model, device=where, dtype="float32"))
    for run in chosen:
        spec, model = run.split("/")
        load_model = partial(loaded, None if model == "embedded" else model)
        scenes = min(RUNS[run], limit or RUNS[run])
        yield from run_specs([spec], load_model, limit=scenes, out=out, device=device, show=show)


def read_study(*folders: Path) -> dict[str, dict[str, Any]]:
    """Results by spec and model: "embedded", "sd2" ..., in this order; what is missing is named."""
    found: dict[str, dict[str, Any]] = {}
    order = ["embedded", *(model.removeprefix("lab:") for model in FAMILIES)]
    for folder in folders:
        for path in sorted(folder.glob(f"*/{RESULT}")):
            result = read_result(path)
            model = result["model"]["name"].removeprefix("lab-")
            found.setdefault(result["spec"], {})[model] = result
    for run in RUNS:
        spec, model = run.split("/")
        if model.removeprefix("lab:") not in found.get(spec, {}):
            raise FileNotFoundError(
                f"the result of {run!r} is missing in {str(folders[0])!r}; "
                "`python -m lab study` makes it"
            )
    return {
        spec: {name: results[name] for name in order if name in results}
        for spec, results in found.items()
    }


def strength_label(result: Mapping[str, Any]) -> str:
    """A model's own strength in words: "1/γ = 1.5, centred"."""
    config = result["rows"]["own strength"]["config"]
    return f"1/γ = {1 / config['gamma']:.3g}{', centred' if config['centred'] else ''}"


def draw_study(study: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """The figures of docs/lab.md."""
    own = study[EXPONENTS]["embedded"]
    controls = {
        name: name.replace("own strength", strength_label(own)).replace("gamma", "γ")
        for name in own["rows"]
        if name.startswith(("own strength", "1/gamma = 3", "constant")) and "centred" not in name
    }
    stress = dials(study[STRESS]["embedded"])
    assert stress is not None
    plots = {
        "controls": effects(own, controls),
        "strength": strengths(study[EXPONENTS]),
        "groups": groups(own, ("own strength", "1/gamma = 3")),
        "stress": stress,
    }
    return [write_bytes(folder / f"{name}.png", plot.png) for name, plot in plots.items()]
