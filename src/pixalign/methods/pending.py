"""What is left of an alignment once the network has answered: threads do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from pixalign.alignment.result import Alignment, MethodOutput, conclude
from pixalign.alignment.task import AlignmentTask
from pixalign.core.ahead import read_ahead

_MOST = 16  # results that wait
_VALUES = 2**26  # of heatmaps that wait: 0.3 GB
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Pending:
    """A picture that the network is done with: the arguments of `conclude`."""

    task: AlignmentTask
    made: tuple[AlignmentTask, MethodOutput] | None
    notes: Sequence[str]
    record: Mapping[str, Any]
    own_bounds: bool

    @property
    def values(self) -> int:
        """How many numbers its heatmaps have."""
        height, width = self.task.size
        return len(self.task.plan.phrases) * height * width

    def conclude(self) -> Alignment:
        """The result, without the network."""
        return conclude(self.task, self.made, self.notes, self.record, self.own_bounds)


def concluded(pending: Iterator[Pending]) -> Iterator[Alignment]:
    """The results in their order, made in threads while the network goes on."""
    how: dict[str, Any] = {"size": lambda waiting: waiting.values, "room": _VALUES}
    with read_ahead(Pending.conclude, pending, _MOST, **how, at_once=True) as results:
        yield from results


def in_turn(lock: AbstractContextManager[Any], items: Iterator[Item]) -> Iterator[Item]:
    """The same items; the lock is free while none is asked for."""
    end = object()
    while True:
        with lock:
            item = next(items, end)
        if item is end:
            return
        yield item  # type: ignore[misc]
