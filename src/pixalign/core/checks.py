"""Errors that name the value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_choice(what: str, value: object, choices: Sequence[object]) -> None:
    """Raise a ValueError that names the value and what is allowed, unless it is allowed."""
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{what} is {value!r}; allowed: {options}")


def check_finite(values: Tensor, what: str, dtype: torch.dtype) -> None:
    """Raise a FloatingPointError that says what to do unless all values are finite."""
    if not bool(torch.isfinite(values).all()):
        remedy = "; load the model with dtype='float32' or 'bfloat16'"
        said = "" if dtype == torch.float32 else remedy
        raise FloatingPointError(f"{what} hold NaN or infinity in {dtype}{said}")
