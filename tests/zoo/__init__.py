"""Newer families at tiny size: a file for each, with how its pipeline is called."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """A pipeline, and how it is called without guidance from outside, and with it.

    ``opposite`` says that its scheduler is handed the opposite of what the objective calls for.
    """

    build: Callable[[], Any]
    plain: dict[str, Any] = field(default_factory=dict)
    guided: dict[str, Any] = field(default_factory=dict)
    opposite: bool = False


@cache
def cases() -> dict[str, Case]:
    """All of them by name."""
    found: dict[str, Case] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        found |= import_module(f"zoo.{path.stem}").CASES
    return found


@cache
def built(name: str) -> Any:
    """A pipeline, shared: never change it."""
    return cases()[name].build()
