"""One network pass at a time: a bounded queue of jobs, with progress, that can be cancelled."""

from __future__ import annotations

import secrets
import threading
import traceback
from collections.abc import Callable
from typing import Any

from pixalign.core.batching import out_of_memory
from pixalign.core.progress import Progress, watched_by

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
_SORRY = "this went wrong inside the server; its terminal says how"


class QueueFull(Exception):
    """No further job is taken now; the text says so to a person."""


class Cancelled(Exception):
    """Raised inside a job's work at its next step, after it was cancelled."""


class Job:
    """A piece of work for the network, done in its turn.

    ``state`` is one of the five above. ``done`` of ``total`` steps of ``stage`` are made; ``error``
    is a sentence where it failed, ``result`` what the work gave.
    """

    def __init__(self, owner: str, work: Callable[[], Any]) -> None:
        self.id, self.owner, self._work = secrets.token_urlsafe(16), owner, work
        self.state, self.stage, self.done, self.total = WAITING, "", 0, 0
        self.error, self.result = "", None
        self._stop, self._ended = threading.Event(), threading.Event()

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is over, or so long; whether it is over."""
        return self._ended.wait(seconds)

    def _watch(self, progress: Progress) -> None:
        self.stage, self.done, self.total = progress.label, progress.done, progress.total
        if self._stop.is_set():
            raise Cancelled

    def _run(self) -> None:
        self.state = RUNNING
        try:
            if self._stop.is_set():
                raise Cancelled
            with watched_by(self._watch):
                self.result = self._work()
            state = DONE
        except Cancelled:
            state = CANCELLED
        except (ValueError, OSError, ArithmeticError) as error:
            state, self.error = FAILED, str(error) or _SORRY
        except Exception as error:
            memory = out_of_memory(error)
            state, self.error = FAILED, "the machine is out of memory" if memory else _SORRY
            if not memory:
                traceback.print_exc()
        self._end(state)

    def _end(self, state: str) -> None:
        self.state = state
        self._work = _nothing  # lets go of what it holds
        self._ended.set()


def _nothing() -> None:
    """What an ended job would do."""


class JobQueue:
    """Jobs one after the other in a thread of their own, at most so many waiting, and of one owner.

    A job that is cancelled while it waits leaves at once; a running one at its next step.
    """

    def __init__(self, most_waiting: int = 8, most_of_owner: int = 3) -> None:
        self.most_waiting, self.most_of_owner = most_waiting, most_of_owner
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._running: Job | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="pixalign jobs", daemon=True)
        self._thread.start()

    def submit(self, owner: str, work: Callable[[], Any]) -> Job:
        """Put work at the end of the queue, or raise `QueueFull`."""
        job = Job(owner, work)
        with self._changed:
            if self._closed:
                raise QueueFull("the server is closing")
            if sum(other.owner == owner for other in self._waiting) >= self.most_of_owner:
                raise QueueFull("too much of yours is waiting already; let it end or cancel it")
            if len(self._waiting) >= self.most_waiting:
                count = len(self._waiting)
                raise QueueFull(f"the queue is full ({count} waiting); try again in a moment")
            self._waiting.append(job)
            self._changed.notify()
        return job

    def ahead(self, job: Job) -> int:
        """How many jobs come before one that waits, the running one included."""
        with self._changed:
            if job not in self._waiting:
                return 0
            return self._waiting.index(job) + (self._running is not None)

    def cancel(self, job: Job) -> None:
        """Ask a job to end; nothing happens to one that is over."""
        job._stop.set()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job._end(CANCELLED)

    def close(self) -> None:
        """Cancel everything and let the thread end."""
        with self._changed:
            self._closed = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
            self._changed.notify()
        for job in jobs:
            self.cancel(job)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = None
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._running = self._waiting.pop(0)
            self._running._run()
