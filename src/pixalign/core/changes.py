"""What changed between two records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pixalign.core.wording import shortened


def check_unchanged(old: Any, new: Any, folder: Path, holds: str) -> None:
    """Raise a ValueError that names the first difference of two records, and what to do."""
    was, now = dict(_leaves(old)), dict(_leaves(new))
    for where in was | now:
        if was.get(where) != now.get(where):
            before, after = (shortened(json.dumps(each.get(where)), 200) for each in (was, now))
            raise ValueError(
                f"{str(folder)!r} holds {holds} of another run: {shortened(where, 200)} was "
                f"{before}, is {after}; choose another --out or move that folder away"
            )


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Plain values by their place: "seed", "config.gamma", "classes.0" ..."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{where}.{key}" if where else str(key))
    else:
        yield where, value
