"""Fields of hand-written YAML, checked: errors name the field, its value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from pixalign.core.checks import check_choice

Fields = dict[str, Any]
Choices = tuple[str, ...]

_FRACTION = re.compile(r"\d+/[1-9]\d*")


class _Loader(yaml.SafeLoader):
    """Plain YAML in which a key stands once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice in one mapping"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """What a file says; a ValueError names the line that is no YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"this is no YAML{where}: {problem}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """ValueErrors raised inside name the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"spec {str(path)!r}: {error}") from error


def numbers(what: str, value: object, levels: Sequence[Choices]) -> Any:
    """Percentages in nested mappings whose keys are among the levels' choices."""
    if not levels:
        if not (is_number(value) and 0 <= value <= 100):
            raise ValueError(f"{what} is {value!r}; allowed: a number from 0 to 100")
        return float(value)
    fields = mapping(what, value)
    for key in fields:
        check_choice(f"a key of {what}", key, levels[0])
    return {key: numbers(f"{what}, {key}", item, levels[1:]) for key, item in fields.items()}


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number; true and false are none."""
    return isinstance(value, float | int) and not isinstance(value, bool)


def unfractioned(value: Any) -> Any:
    """ "1/3" as the number it is; anything else unchanged."""
    is_fraction = isinstance(value, str) and _FRACTION.fullmatch(value)
    return float(Fraction(value)) if is_fraction else value


def mapping(what: str, value: object) -> Fields:
    """The value, if it is a mapping."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r}; allowed: a mapping of names to values")
    return value


def text(what: str, value: object) -> str:
    """The value, if it is a text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} is {value!r}; allowed: a text")
    return value


def texts(what: str, value: object) -> tuple[str, ...]:
    """The value's texts, if it is a list of them."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is {value!r}; allowed: a list of texts")
    return tuple(text(f"an item of {what}", item) for item in value)
