"""A tokenizer, and which text columns its tokens fill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pixalign.text.prompts import Span, token_columns


@dataclass(frozen=True)
class TextStream:
    """A tokenizer whose tokens fill the text columns from ``start``, at most ``limit`` of them.

    ``loaded`` says whether the encoder that reads these tokens is there.
    """

    kind: str  # "clip" or "t5"
    tokenizer: Any
    start: int
    limit: int
    loaded: bool = True

    def columns(self, text: str, spans: Iterable[Span], length: int) -> set[int]:
        """The text columns, out of ``length``, of the characters in the spans.

        A longer text is cut by the pipeline, and its last column then holds the end token.
        """
        offsets = self.offsets(text)
        room = length - self.start  # T5 comes last and reads as much as the call allows it
        room = room if self.kind == "t5" else min(room, self.limit)
        last = room if len(offsets) <= room else room - 1
        return {self.start + c for c in token_columns(offsets, spans) if c < last}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters behind each token, special tokens included, nothing cut off."""
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
        encoded = self.tokenizer(text, return_offsets_mapping=True, verbose=False)
        return [(start, end) for start, end in encoded["offset_mapping"]]
