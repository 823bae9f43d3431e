"""Errors that name the value and what is allowed."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence

import torch
from torch import Tensor

_BRIEF = reprlib.Repr()
_BRIEF.maxlevel = 4
_BRIEF.maxstring = _BRIEF.maxother = 120


def brief(value: object) -> str:
    """A value as a message shows it: `repr`, of what is large or deep the beginning."""
    return _BRIEF.repr(value)


def check_choice(what: str, value: object, choices: Sequence[object]) -> None:
    """Raise a ValueError that names the value and what is allowed, unless it is allowed."""
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{what} is {brief(value)}; allowed: {options}")


def check_seed(seed: object) -> None:
    """Raise a ValueError unless it is a seed of random numbers."""
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}; allowed: a whole number from 0 to 2**63 - 1")


def check_number(what: str, value: object) -> None:
    """Raise a ValueError unless it is a number, and a finite one."""
    if not isinstance(value, float | int) or not math.isfinite(value):
        raise ValueError(f"{what} is {brief(value)}; allowed: a finite number")


def check_finite(values: Tensor, what: str, dtype: torch.dtype) -> None:
    """Raise a FloatingPointError that says what to do unless all values are finite."""
    if not bool(torch.isfinite(values).all()):
        remedy = "; load the model with dtype='float32' or 'bfloat16'"
        said = "" if dtype == torch.float32 else remedy
        raise FloatingPointError(f"{what} hold NaN or infinity in {dtype}{said}")
