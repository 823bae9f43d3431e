"""Several processes with a model each, to which units are handed out."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import Any

from pixalign.config import AlignConfig
from pixalign.core.protocols import AlignmentModel
from pixalign.labelling.manifest import Unit
from pixalign.labelling.work import UNITS, Job, ModelFacts, UnitReport, label_units

_AHEAD = UNITS + 2  # units that a process knows of: those that end, one in the network, the next
_MOST_DEATHS = 3


@dataclass(eq=False)
class _Worker:
    """A process, our end of the pipe to it, and the units that it has not reported."""

    process: Any
    pipe: Connection
    units: deque[Unit] = field(default_factory=deque)
    ended: bool = False

    def feed(self, todo: deque[Unit], most: int) -> None:
        """Hand out units until it knows of so many; at the end, say so."""
        while not self.ended and todo and len(self.units) < most:
            self.units.append(todo.popleft())
            self.pipe.send(self.units[-1])
        if not todo and not self.ended:
            self.pipe.send(None)
            self.ended = True


class Processes:
    """Labels with ``count`` processes, each of which calls ``load`` with its number, from 0.

    When one dies, another takes its place, and its units are done again; the fourth time it is an
    error.
    """

    def __init__(self, load: Callable[[int], AlignmentModel], count: int) -> None:
        self.load, self.count = load, count
        self.workers: list[_Worker] = []
        self.deaths = self.started = 0

    def facts(self, config: AlignConfig) -> ModelFacts:
        """Those of the first process's model."""
        self._start(config)
        return self._facts_of(self.workers[0])

    def label(self, job: Job, todo: Sequence[Unit]) -> Iterator[UnitReport]:
        """In the order in which they are done."""
        waiting = deque(todo)
        most = max(1, min(_AHEAD, -(-len(todo) // self.count)))  # a few are shared out evenly
        known: set[Any] = {self.workers[0].pipe}
        self.workers[0].pipe.send(job)
        self.workers[0].feed(waiting, most)
        for _ in range(min(self.count, len(todo)) - 1):
            self._start(job.config)
        while any(worker.units for worker in self.workers) or waiting:
            by_pipe = {worker.pipe: worker for worker in self.workers}
            for pipe in wait(list(by_pipe)):
                worker = by_pipe[pipe]  # type: ignore[index]
                try:
                    message = worker.pipe.recv()
                except (EOFError, ConnectionError):
                    waiting.extendleft(reversed(worker.units))
                    self._replace(worker, job.config)
                    continue
                if isinstance(message, Exception):
                    raise message
                if pipe not in known:  # it is ready, and has told what is known of its model
                    known.add(pipe)
                    worker.pipe.send(job)
                else:
                    worker.units.remove(message.unit)
                    yield message
                worker.feed(waiting, most)

    def close(self) -> None:
        """End the processes; what they have in hand is lost."""
        for worker in self.workers:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()
        self.workers.clear()

    def _start(self, config: AlignConfig) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        about = (theirs, self.load, self.started % self.count, config)
        process = context.Process(target=_serve, args=about, daemon=True)
        process.start()
        theirs.close()
        self.started += 1
        self.workers.append(_Worker(process, ours))

    def _replace(self, worker: _Worker, config: AlignConfig) -> None:
        worker.process.join()
        self.workers.remove(worker)
        self.deaths += 1
        if self.deaths > _MOST_DEATHS:
            raise ChildProcessError(
                f"{self.deaths} processes died, the last with exit code {worker.process.exitcode}; "
                "the same command goes on from what is finished, perhaps with fewer --workers"
            )
        self._start(config)

    def _facts_of(self, worker: _Worker) -> ModelFacts:
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionError) as error:
            worker.process.join()
            code = worker.process.exitcode
            raise ChildProcessError(f"a process died with exit code {code}") from error
        if isinstance(message, Exception):
            raise message
        facts: ModelFacts = message
        return facts


def _there(pipe: Connection, todo: Iterator[Unit]) -> Iterator[Unit]:
    """Units that need not be waited for: reports may be owed before there are more."""
    while pipe.poll():
        unit = next(todo, None)
        if unit is None:
            return
        yield unit


def _serve(
    pipe: Connection, load: Callable[[int], AlignmentModel], number: int, config: AlignConfig
) -> None:
    """A process: it tells what is known of its model, takes a job, and then units till None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's affair
    try:
        model = load(number)
        pipe.send(ModelFacts.of(model, config))
        job: Job = pipe.recv()
        todo = iter(pipe.recv, None)
        for unit in todo:
            for report in label_units(model, job, chain([unit], _there(pipe, todo))):
                pipe.send(report)
        pipe.recv()  # until the other end is closed
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        pipe.send(error)
