"""End a network's pass as soon as all that is wanted of it has been read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from torch import nn


class _Reached(Exception):
    """The pass has come to the layer at which it ends."""


def run_until(module: nn.Module, call: Callable[[], object]) -> None:
    """Call the network, and end its pass at ``module``: neither that nor what follows is run.

    A reader that was attached before has then seen the input of ``module``, which is all that it
    needs; the network is left as it was.
    """

    def stop(*_: object) -> None:
        raise _Reached

    handle = module.register_forward_pre_hook(stop)
    try:
        with suppress(_Reached):
            call()
    finally:
        handle.remove()
