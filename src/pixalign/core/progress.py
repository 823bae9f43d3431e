"""One progress bar for one piece of long work, and who else watches it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm


class Progress:
    """Counts passes or other units; draws a bar on stderr when asked to and someone is watching.

    ``done`` of ``total`` are made. Whoever watches (`watched_by`) is told of every change, and ends
    the work by raising.
    """

    def __init__(self, total: int, label: str, show: bool, unit: str = "pass") -> None:
        self.total, self.done, self.label = total, 0, label
        self._watcher = _WATCHER.get()
        self._bar: tqdm[Any] | None = None
        if show:
            # disable=None keeps the bar out of files and pipes.
            self._bar = tqdm(total=total, desc=label, unit=unit, file=sys.stderr, disable=None)
        self._tell()

    def expect(self, more: int) -> None:
        """So many passes come on top, or fall away where it is below 0."""
        self.total += more
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.refresh()
        self._tell()

    def advance(self, count: int) -> None:
        """Some passes more are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        self._tell()

    def reach(self, count: int) -> None:
        """So many passes are done, more or fewer than before."""
        self.advance(count - self.done)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _tell(self) -> None:
        if self._watcher is not None and self.total:
            self._watcher(self)


_WATCHER: ContextVar[Callable[[Progress], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Callable[[Progress], None]) -> Iterator[None]:
    """Inside, the watcher is told of all progress that is made in this thread."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)
