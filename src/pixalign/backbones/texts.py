"""What a pipeline's text encoders make of prompts, and where a prompt's words stand in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from pixalign.core.checks import brief
from pixalign.core.values import TextCondition, TokenSpans
from pixalign.text.prompts import Prompt, Span, check_prompt
from pixalign.text.streams import TextStream

_TEXT_BATCH = 32  # prompts that go through the text encoders together


class TextReader(ABC):
    """A pipeline's text encoders: prompts in, what the network is shown of them out."""

    pads_texts: ClassVar[bool] = False  # to one length, whatever is encoded together
    pipe: Any
    device: Any
    dtype: Any

    def __init__(self) -> None:
        self.streams: tuple[TextStream, ...] = self._streams()
        self._ahead: tuple[dict[str, int], TextCondition] | None = None  # known prompts, by row

    @abstractmethod
    def _streams(self) -> tuple[TextStream, ...]: ...

    @abstractmethod
    def _encode_text(self, prompts: list[str]) -> TextCondition: ...

    @contextmanager
    def encoded_ahead(self, prompts: Iterable[str]) -> Iterator[None]:
        """Inside the block these prompts are known: they are encoded in one batch."""
        distinct = list(dict.fromkeys(prompts))
        if self.pads_texts and distinct:
            rows = {prompt: row for row, prompt in enumerate(distinct)}
            self._ahead = rows, self.encode_text(distinct)
        try:
            yield
        finally:
            self._ahead = None

    @torch.no_grad()
    def encode_text(self, prompts: Sequence[str]) -> TextCondition:
        """Conditional embeddings of the prompts, as the pipeline itself computes them."""
        if self._ahead is not None and all(prompt in self._ahead[0] for prompt in prompts):
            rows, texts = self._ahead
            return texts[torch.tensor([rows[prompt] for prompt in prompts]).to(self.device)]
        starts = range(0, len(prompts), _TEXT_BATCH)
        parts = [self._encode_text(list(prompts[first : first + _TEXT_BATCH])) for first in starts]
        dtype = self.dtype
        return TextCondition.concatenate(parts).map(
            lambda part: part.to(dtype) if part.is_floating_point() else part
        )

    def unconditional(self) -> TextCondition:
        """What guidance leads away from: the empty prompt, as the pipeline itself encodes it."""
        return self.encode_text([""])

    def blank(self, length: int) -> Tensor:
        """What the empty prompt has in each of so many text columns: [length, D].

        Where it fills fewer, the others have the mean of those.
        """
        embeds = self.encode_text([""]).embeds[0][:length]
        return torch.cat([embeds, embeds.mean(0, keepdim=True).expand(length - len(embeds), -1)])

    def fits(self, text: str) -> bool:
        """Whether every text encoder reads the whole text."""
        return all(len(s.offsets(text)) <= s.limit for s in self.streams if s.loaded)

    def check_prompt(self, prompt: str) -> None:
        """Refuse a prompt that is empty, or that no text encoder reads to its end."""
        check_prompt(prompt)
        read = [(len(s.offsets(prompt)), s.limit) for s in self.streams if s.loaded]
        if read and all(length > limit for length, limit in read):
            length, limit = max(read, key=lambda pair: pair[1])
            raise ValueError(
                f"prompt {brief(prompt)} has {length} tokens, of which the model reads "
                f"{limit}; shorten it"
            )

    def token_spans(self, prompt: Prompt, length: int, kinds: str = "all") -> TokenSpans:
        """The text columns of each class of a prompt, out of ``length``.

        ``kinds="clip"`` leaves T5's columns out. A class without a column is an error.
        """
        streams = [s for s in self.streams if s.loaded and kinds in ("all", s.kind)]
        columns = self.columns(prompt.text, prompt.spans, length, streams)
        for spans, own in zip(prompt.spans, columns, strict=True):
            if not own:
                words = " / ".join(prompt.text[start:end] for start, end in spans)
                raise ValueError(
                    f"no tokens of {words!r} were found in {prompt.text!r}, "
                    f"of which the model reads {length} tokens"
                )
        return TokenSpans(prompt.text, prompt.classes, columns, length)

    def columns(
        self,
        text: str,
        places: Iterable[Sequence[Span]],
        length: int,
        streams: Iterable[TextStream] | None = None,
    ) -> tuple[tuple[int, ...], ...]:
        """The text columns of each place, some spans of a text; none where it is cut before it.

        Without ``streams``, those of all encoders that are there.
        """
        streams = [s for s in self.streams if s.loaded] if streams is None else list(streams)
        convert = getattr(self.pipe, "maybe_convert_prompt", lambda same, tokenizer: same)
        if any(convert(text, stream.tokenizer) != text for stream in streams):
            raise ValueError(
                f"{text!r} holds a textual inversion of several vectors; the columns of "
                "its words cannot be told"
            )
        return tuple(
            tuple(sorted(set().union(*(s.columns(text, spans, length) for s in streams))))
            for spans in places
        )
