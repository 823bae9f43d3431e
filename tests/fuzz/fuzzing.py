"""Calls with damaged input: what may be raised, how long it may take, how many there are."""

import os
import signal
import warnings
from contextlib import contextmanager
from random import Random

COUNT = int(os.environ.get("PIXALIGN_FUZZ", "20"))
DOCUMENTED = (ValueError, OSError)
SECONDS = 20  # of one input


@contextmanager
def in_time():
    def stop(*arguments):
        raise AssertionError(f"it took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(work, count=COUNT, first=0):
    """Call ``work`` with so many generators; nothing but what is documented may be raised."""
    refused = 0
    for seed in range(first, first + count):
        said = "nothing is wrong"
        with warnings.catch_warnings(), in_time():
            warnings.simplefilter("ignore")
            try:
                work(Random(seed))
            except DOCUMENTED as error:
                refused += 1
                said = str(error)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert 0 < len(said) < 5000, f"seed {seed}: an error of {len(said)} letters"
    print(f" {count} inputs, {refused} refused", end=" ")  # seen with -sv
    return refused
