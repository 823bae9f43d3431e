"""Tensors that a model's files lack: libraries fill them with random numbers, or with nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_LOGGER = "transformers.modeling_utils"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_TITLE, _ROW = re.compile(r"(\w+) LOAD REPORT"), re.compile(r"^(\S+)\s*\|\s*MISSING", re.MULTILINE)
_NAMED = 3


@contextmanager
def refusing_missing() -> Iterator[None]:
    """Raise a ValueError if transformers says inside that a model's files lack tensors.

    It says so in a report alone, which is heard here and not shown.
    """
    reports: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(_STYLE.sub("", record.getMessage()))

    logger, handler = logging.getLogger(_LOGGER), Handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
    for report in reports:
        if names := _ROW.findall(report):
            kind = _TITLE.search(report)
            _refuse(kind[1] if kind else "a model", names)


def check_whole(pipe: Any) -> None:
    """Raise a ValueError if a part of a pipeline has tensors without data, which nothing hooks."""
    for part, module in pipe.components.items():
        if isinstance(module, nn.Module) and not hasattr(module, "_hf_hook"):
            names = [name for name, weight in module.state_dict().items() if weight.is_meta]
            if names:
                _refuse(part, names)


def _refuse(part: str, names: list[str]) -> None:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise ValueError(
        f"the files of {part} lack {', '.join(names[:_NAMED])}{more}; they are damaged or "
        "incomplete: load the model anew"
    )
