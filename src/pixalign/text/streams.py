"""A tokenizer, and which text columns its tokens fill."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pixalign.text.prompts import Span, token_columns

_MARK = "\x1a"  # stands for a prompt in a template


@dataclass(frozen=True)
class TextStream:
    """A tokenizer whose tokens fill the text columns from ``start``, at most ``limit`` of them.

    ``loaded`` says whether the encoder that reads these tokens is there. Texts are read between
    ``before`` and ``after``, such as a chat's template, in lower case and without spaces around
    them if ``lower``. Without ``special`` the tokenizer adds none of its special tokens, which a
    template holds itself. The network is not shown the first ``dropped`` tokens; ``lead`` says how
    many padding tokens stand before so many others. All but "clip" and those that are ``bounded``
    read as much as a call allows them.
    """

    kind: str  # "clip", "t5" or "llm"
    tokenizer: Any
    start: int
    limit: int
    loaded: bool = True
    before: str = ""
    after: str = ""
    lower: bool = False
    special: bool = True
    dropped: int = 0
    lead: Callable[[int], int] = lambda tokens: 0
    bounded: bool = False

    def columns(self, text: str, spans: Iterable[Span], length: int) -> set[int]:
        """The text columns, out of ``length``, of the characters in the spans.

        A longer text is cut by the pipeline, and its last column then holds the end token.
        """
        offsets = self.offsets(text)
        room = length - self.start  # others come last and read as much as the call allows them
        room = min(room, self.limit) if self.kind == "clip" or self.bounded else room
        last = room if len(offsets) <= room else room - 1
        first = self.start + self.lead(len(offsets))
        return {first + c for c in token_columns(offsets, spans) if c < last}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of the text behind each token that the network is shown.

        Special tokens and those of the template have none; nothing is cut off.
        """
        if len(self.tokenizer) < 3 or self.limit > 10**6:
            raise ValueError(
                f"the {self.kind} tokenizer has {len(self.tokenizer)} tokens and reads "
                f"{self.limit} at once: its files are missing or incomplete"
            )
        shown, skip, end = text, len(self.before), len(text)
        if self.lower:
            shown, skip = text.lower().strip(), skip - (end - len(text.lstrip()))
            if len(shown) != len(text.strip()):  # a Turkish capital I becomes two
                raise ValueError(
                    f"{text!r} changes its length in lower case, in which the model reads it; "
                    "write it so"
                )
        whole = f"{self.before}{shown}{self.after}"
        return [
            (max(0, first - skip), min(end, last - skip)) if first < skip + end else (0, 0)
            for first, last in _token_spans(self.tokenizer, whole, self.special)[self.dropped :]
        ]


def _token_spans(tokenizer: Any, text: str, special: bool) -> list[Span]:
    """The characters of a text behind each token; special tokens have none."""
    how = {"add_special_tokens": special, "verbose": False}
    if getattr(tokenizer, "is_fast", False):
        spans: list[Span] = tokenizer(text, return_offsets_mapping=True, **how)["offset_mapping"]
        return spans
    ids, pieces = tokenizer(text, **how)["input_ids"], tokenizer.tokenize(text)
    own, written = tokenizer.convert_tokens_to_ids(pieces), [_written(piece) for piece in pieces]
    starts = [at for at in range(len(ids) + 1) if ids[at : at + len(own)] == own]
    spelled = f" {text}" if pieces else text.strip()  # SentencePiece puts a space before a text
    if not starts or b"".join(written) != spelled.encode():
        raise ValueError(
            f"{type(tokenizer).__name__} cannot tell which characters of {text!r} its tokens "
            "cover, as their pieces do not spell it; load the pipeline with fast tokenizers"
        )
    character = [-1, *(i for i, sign in enumerate(text) for _ in sign.encode())]  # of each byte
    ends = accumulate(map(len, written))
    told = [
        (max(0, character[end - len(part)]), character[end - 1] + 1)
        for part, end in zip(written, ends, strict=True)
    ]
    return [(0, 0)] * starts[0] + told + [(0, 0)] * (len(ids) - starts[0] - len(told))


def _written(piece: str) -> bytes:
    """What a piece of SentencePiece stands for: a byte such as <0xE4>, or a text."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()


def around_prompt(template: Callable[[str], str]) -> tuple[str, str]:
    """What a template, such as a chat's, puts before a prompt and after it."""
    before, _, after = template(_MARK).partition(_MARK)
    return before, after
