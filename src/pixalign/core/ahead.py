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


@contextmanager
def read_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], most: int = 2 * _THREADS
) -> Iterator[Iterator[Result]]:
    """``work`` of each item, in their order; at most so many results wait to be taken.

    What ``work`` raises is raised where its result would be taken.
    """
    with ThreadPoolExecutor(min(_THREADS, most), "pixalign-read") as pool:
        waiting: deque[Future[Result]] = deque()

        def results() -> Iterator[Result]:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) == most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        try:
            yield results()
        finally:
            for future in waiting:
                future.cancel()
