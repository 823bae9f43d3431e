"""One job at a time, in turn; full queues, cancelling, failing."""

import threading
from contextlib import contextmanager

import pytest

from pixalign.core.progress import Progress
from pixalign.serving.jobs import JobQueue, QueueFull


@pytest.fixture
def queue():
    made = JobQueue(most_waiting=4, most_of_owner=3)
    yield made
    made.close()
    made._thread.join(5)
    assert not made._thread.is_alive()


@contextmanager
def blocked(queue):
    """A job that runs until the block ends."""
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go.wait(10)

    job = queue.submit("blocker", work)
    assert begun.wait(5)
    try:
        yield job
    finally:
        go.set()


def test_jobs_run_one_at_a_time_in_turn(queue):
    order, running = [], []

    def work(number):
        running.append(number)
        assert len(running) == 1
        order.append(number)
        running.pop()
        return number * number

    with blocked(queue):
        jobs = [queue.submit(f"owner {n}", lambda n=n: work(n)) for n in range(4)]
        assert [queue.ahead(job) for job in jobs] == [1, 2, 3, 4]
        assert {job.state for job in jobs} == {"waiting"}
    assert all(job.wait(5) for job in jobs)
    assert order == [0, 1, 2, 3]
    assert [(job.state, job.result) for job in jobs] == [("done", n * n) for n in range(4)]


def test_a_full_queue_says_so(queue):
    with blocked(queue):
        for _ in range(3):
            queue.submit("a", int)
        with pytest.raises(QueueFull, match="of yours"):
            queue.submit("a", int)
        queue.submit("b", int)
        with pytest.raises(QueueFull, match="the queue is full \\(4 waiting\\)"):
            queue.submit("c", int)


def test_a_running_job_ends_at_its_next_step(queue):
    begun, go = threading.Event(), threading.Event()
    done = []

    def work():
        with Progress(3, "steps", show=False) as progress:
            for _ in range(3):
                progress.advance(1)
                done.append(1)
                begun.set()
                assert go.wait(5)

    job = queue.submit("a", work)
    assert begun.wait(5)
    assert (job.stage, job.done, job.total) == ("steps", 1, 3)
    queue.cancel(job)
    assert job.state == "running"
    go.set()
    assert job.wait(5)
    assert (job.state, len(done)) == ("cancelled", 1)
    queue.cancel(job)  # over: nothing happens
    assert job.state == "cancelled"


def test_a_waiting_job_leaves_at_once_and_never_runs(queue):
    ran = []
    with blocked(queue):
        job, other = queue.submit("a", lambda: ran.append(1)), queue.submit("a", int)
        queue.cancel(job)
        assert (job.state, queue.ahead(other)) == ("cancelled", 1)
    assert other.wait(5)
    assert not ran


def test_what_goes_wrong_is_told_and_the_next_job_runs(queue, capsys):
    def failing(error):
        raise error

    told = queue.submit("a", lambda: failing(ValueError("classes are []; allowed: one or more")))
    memory = queue.submit("a", lambda: failing(RuntimeError("CUDA out of memory")))
    assert told.wait(5)
    assert memory.wait(5)
    hidden = queue.submit("a", lambda: failing(KeyError("secret")))
    assert hidden.wait(5)
    assert told.error == "classes are []; allowed: one or more"
    assert "memory" in memory.error
    assert "secret" not in hidden.error
    assert "KeyError: 'secret'" in capsys.readouterr().err
    after = queue.submit("a", lambda: 7)
    assert after.wait(5)
    assert after.result == 7


def test_progress_of_other_threads_is_not_watched(queue):
    with blocked(queue) as job, Progress(5, "elsewhere", show=False) as progress:
        queue.cancel(job)
        progress.advance(5)
        assert job.total == 0


def test_a_closed_queue_takes_nothing(queue):
    queue.close()
    with pytest.raises(QueueFull, match="closing"):
        queue.submit("a", int)
