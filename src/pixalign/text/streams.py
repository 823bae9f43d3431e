"""A tokenizer, and which text columns its tokens fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pixalign.text.prompts import Span, token_columns

_MARK = "\x1a"  # stands for a prompt in a template


@dataclass(frozen=True)
class TextStream:
    """A tokenizer whose tokens fill the text columns from ``start``, at most ``limit`` of them.

    ``loaded`` says whether the encoder that reads these tokens is there. Texts are read between
    ``before`` and ``after``, such as a chat's template, in lower case if ``lower``. Without
    ``special`` the tokenizer adds none of its special tokens, which a template holds itself. The
    network is not shown the first ``dropped`` tokens; ``lead`` says how many padding tokens stand
    before so many others. All but "clip" read as much as a call allows them.
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

    def columns(self, text: str, spans: Iterable[Span], length: int) -> set[int]:
        """The text columns, out of ``length``, of the characters in the spans.

        A longer text is cut by the pipeline, and its last column then holds the end token.
        """
        offsets = self.offsets(text)
        room = length - self.start  # others come last and read as much as the call allows them
        room = min(room, self.limit) if self.kind == "clip" else room
        last = room if len(offsets) <= room else room - 1
        first = self.start + self.lead(len(offsets))
        return {first + c for c in token_columns(offsets, spans) if c < last}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of the text behind each token that the network is shown.

        Special tokens and those of the template have none; nothing is cut off.
        """
        if not getattr(self.tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(self.tokenizer).__name__} cannot tell which characters a token covers; "
                "load the pipeline with fast tokenizers"
            )
        if len(self.tokenizer) < 3 or self.limit > 10**6:
            raise ValueError(
                f"the {self.kind} tokenizer has {len(self.tokenizer)} tokens and reads "
                f"{self.limit} at once: its files are missing or incomplete"
            )
        shown = text.lower() if self.lower else text
        whole = f"{self.before}{shown}{self.after}"
        how = {"return_offsets_mapping": True, "verbose": False}
        encoded = self.tokenizer(whole, add_special_tokens=self.special, **how)
        skip, end = len(self.before), len(text)
        return [
            (max(0, first - skip), min(end, last - skip)) if first < skip + end else (0, 0)
            for first, last in encoded["offset_mapping"][self.dropped :]
        ]


def around_prompt(template: Callable[[str], str]) -> tuple[str, str]:
    """What a template, such as a chat's, puts before a prompt and after it."""
    before, _, after = template(_MARK).partition(_MARK)
    return before, after
