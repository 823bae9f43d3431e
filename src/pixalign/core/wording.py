"""Words of messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """ "1 picture", "2 pictures"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(text: str, most: int = 400) -> str:
    """A text of others as a message shows it: of a long one the beginning and the end."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {text[-most // 2 :]}"
