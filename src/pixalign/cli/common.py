"""What all commands share."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda (or cuda:1) or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]


def print_json(record: Any) -> None:
    """To stdout, for other programs."""
    print(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def said_plainly() -> Iterator[None]:
    """Our own warnings, one line each on stderr after the work; other libraries' are not shown."""
    said: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
    finally:
        for warning in said:
            if warning.category in (UserWarning, RuntimeWarning) and "pixalign" in warning.filename:
                print(f"warning: {warning.message}", file=sys.stderr)
