"""One progress bar for one piece of long work."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


class Progress:
    """Counts passes or other units; draws a bar on stderr when asked to and someone is watching."""

    def __init__(self, total: int, label: str, show: bool, unit: str = "pass") -> None:
        self._bar: tqdm[Any] | None = None
        if show:
            # disable=None keeps the bar out of files and pipes.
            self._bar = tqdm(total=total, desc=label, unit=unit, file=sys.stderr, disable=None)

    def expect(self, more: int) -> None:
        """So many passes come on top, or fall away where it is below 0."""
        if self._bar is not None:
            self._bar.total = (self._bar.total or 0) + more
            self._bar.refresh()

    def advance(self, count: int) -> None:
        """Some passes more are done."""
        if self._bar is not None:
            self._bar.update(count)

    def reach(self, count: int) -> None:
        """So many passes are done, more or fewer than before."""
        if self._bar is not None:
            self._bar.update(count - self._bar.n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
