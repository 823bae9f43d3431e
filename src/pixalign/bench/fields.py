"""Hand-written YAML, and its errors in one line: the file, the field and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pixalign.core.checks import brief
from pixalign.core.files import read_text

MOST_LETTERS, MOST_STARS = 200_000, 40  # of a file; references of references grow without end
_MAPPING = "a mapping of names to values"
_ALLOWED = {
    "string_type": "a text", "string_pattern_mismatch": "a text", "tuple_type": "a list of texts",
    "dict_type": _MAPPING, "model_type": _MAPPING,
}  # fmt: skip


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


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a file; a ValueError names the line that is no YAML."""
    try:
        text = read_text(path)
        if len(text) > MOST_LETTERS or text.count("*") > MOST_STARS:
            raise ValueError(f"it is too large: {len(text)} letters, {text.count('*')} references")
        fields = yaml.load(text, Loader=_Loader)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"this is no YAML{where}: {problem}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"the file is {brief(fields)}; allowed: {_MAPPING}")
    return fields


@contextmanager
def naming(path: Path, fields: Mapping[str, Any] | None = None) -> Iterator[None]:
    """ValueErrors raised inside name the file; pydantic's first one also the field, in words."""
    try:
        yield
    except ValueError as error:
        said = _in_words(error, fields or {}) if isinstance(error, ValidationError) else error
        raise ValueError(f"spec {str(path)!r}: {said}") from error


def _in_words(error: ValidationError, fields: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False)[0]
    said = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error" and not said.startswith("allowed"):
        return said
    where, *inner = first["loc"]
    if where == "rows" and inner:
        number, *key = inner
        assert isinstance(number, int)
        named = repr(fields["rows"][number]["name"]) if key and key != ["name"] else number + 1
        where = " of ".join([*map(str, key), f"row {named}"])
    elif inner:
        where = f"an item of {where}"
    allowed = _ALLOWED.get(first["type"], said).removeprefix("allowed: ")
    return f"{where} is {brief(first['input'])}; allowed: {allowed}"
