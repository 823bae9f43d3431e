"""Errors that name the value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence


def check_choice(what: str, value: object, choices: Sequence[object]) -> None:
    """Raise a ValueError that names the value and what is allowed, unless it is allowed."""
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{what} is {value!r}; allowed: {options}")
