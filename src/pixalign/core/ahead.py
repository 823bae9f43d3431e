"""Work that threads do ahead of whoever needs its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_THREADS = 4
Item = TypeVar("Item")
Result = TypeVar("Result")


def until_error(items: Iterable[Item], failed: list[Exception]) -> Iterator[Item]:
    """The items up to one that cannot be made; why not is put into ``failed``."""
    try:
        yield from items
    except Exception as error:
        failed.append(error)


@contextmanager
def read_ahead(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    most: int = 2 * _THREADS,
    size: Callable[[Item], int] | None = None,
    room: int = 0,
    at_once: bool = False,
) -> Iterator[Iterator[Result]]:
    """``work`` of each item, in their order; at most so many results wait to be taken.

    That many do wait, if there are as many items, so that work is always ahead of whoever takes
    its results; where making the items is what takes long, ``at_once`` gives each when it is ready.
    With ``size`` fewer wait where the sizes of all but the last already fill the ``room``. What
    ``work`` raises, or the next item's making, is raised where its result would be taken.
    """
    with ThreadPoolExecutor(min(_THREADS, most), "pixalign-read") as pool:
        waiting: deque[tuple[Future[Result], int]] = deque()

        def full() -> bool:
            held = sum(amount for _, amount in list(waiting)[:-1])
            return len(waiting) == most or (size is not None and held >= room)

        def results() -> Iterator[Result]:
            failed: list[Exception] = []
            for item in until_error(items, failed):
                waiting.append((pool.submit(work, item), 0 if size is None else size(item)))
                del item  # what is taken is held by whoever took it
                while full() or (at_once and waiting and waiting[0][0].done()):
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
            if failed:
                raise failed[0]

        try:
            yield results()
        finally:
            for future, _ in waiting:
                future.cancel()
