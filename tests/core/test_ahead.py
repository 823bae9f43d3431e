"""Reading ahead: order, bounds and errors."""

import threading
import time

import pytest

from pixalign.core.ahead import read_ahead


def test_results_keep_their_order_and_few_wait():
    taken, begun, most_open, lock = 0, 0, 0, threading.Lock()

    def work(number):
        nonlocal begun, most_open
        with lock:
            begun += 1
            most_open = max(most_open, begun - taken)
        return number * number

    with read_ahead(work, iter(range(100)), most=5) as squares:
        for expected in range(100):
            assert next(squares) == expected * expected
            with lock:
                taken += 1
        assert next(squares, None) is None
    assert most_open <= 6  # five wait, and one is in hand


def test_threads_work_while_nobody_takes():
    """The next ones are begun before they are asked for, at the same time."""
    together = threading.Barrier(3, timeout=20)

    def work(number):
        if number:
            together.wait()
        return number

    with read_ahead(work, range(4), most=4) as results:
        assert next(results) == 0
        together_seen = list(results)
    assert together_seen == [1, 2, 3]


def test_an_error_is_raised_in_its_place():
    def work(number):
        if number == 2:
            raise ValueError("two")
        return number

    with read_ahead(work, range(5)) as results:
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ValueError, match="two"):
            next(results)


def test_what_was_made_before_an_error_comes_first():
    def numbers():
        yield from range(3)
        raise ValueError("three")

    with read_ahead(str, numbers(), most=8) as results:
        assert [next(results) for _ in range(3)] == ["0", "1", "2"]
        with pytest.raises(ValueError, match="three"):
            next(results)


@pytest.mark.parametrize("at_once", [False, True])
def test_ready_results_are_given_at_once_or_when_many_wait(at_once):
    made, ready = [], threading.Event()

    def items():
        for number in range(4):
            made.append(number)
            yield number
            if number == 0:
                ready.wait(20)
                time.sleep(0.1)  # the future is done a moment after its work

    def work(number):
        if number == 0:
            ready.set()
        return number

    with read_ahead(work, items(), most=3, at_once=at_once) as results:
        assert next(results) == 0
        assert len(made) in ((1, 2) if at_once else (3,))
        assert list(results) == [1, 2, 3]


def test_what_is_left_is_not_begun():
    begun = []
    with read_ahead(begun.append, range(1000), most=3) as results:
        next(results)
    assert len(begun) <= 4


def test_large_results_wait_less():
    """Two of size 3 fill a room of 4 with the first of them alone, and one more is in hand."""
    taken, begun, most_open, lock = 0, 0, 0, threading.Lock()

    def work(number):
        nonlocal begun, most_open
        with lock:
            begun += 1
            most_open = max(most_open, begun - taken)
        return number

    with read_ahead(work, range(40), most=16, size=lambda number: 3, room=4) as results:
        for number in results:
            with lock:
                taken = number + 1
    assert begun == 40
    assert most_open <= 4
