"""Words of messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """ "1 picture", "2 pictures"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
