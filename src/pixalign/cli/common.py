"""What all commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda (or cuda:1) or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]


def print_json(record: Any) -> None:
    """To stdout, for other programs."""
    print(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False))
