"""What each row of a table costs: the seconds of whatever it uses."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class Clock:
    """Seconds by row; work that a GPU still has in its queue is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def charged(self, shares: Mapping[str, float]) -> Iterator[None]:
        """Charge each of some rows its share of the seconds that pass inside."""
        started = self._now()
        yield
        spent = self._now() - started
        for name, share in shares.items():
            self.rows[name] += share * spent

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
