"""What is written into the target's attention: Prompt-to-Prompt, and heatmaps in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pixalign.core.maps import minmax
from pixalign.core.protocols import AlignmentModel as Aligner
from pixalign.core.values import Phrase, Size, TokenSpans
from pixalign.methods import METHODS as METHODS_
from pixalign.methods import Method
from pixalign.text.pairing import Pairing
from pixalign.text.prompts import Span, head_noun, occurrences_of

# Where each method's heatmaps come from; Prompt-to-Prompt has none.
METHODS: dict[str, Callable[[Aligner], Aligner | Method] | None] = {
    "elbo": lambda aligner: METHODS_["elbo"](aligner),
    "diffsegmenter": lambda aligner: METHODS_["diffsegmenter"](aligner),
    "ptp": None,
}


class PromptToPrompt:
    """Hertz et al., 2023: words attend where the source's words do.

    A target map becomes blend (A_source M) + (1 - blend) A_target, each column times its factor.
    """

    def __init__(self, pairings: Sequence[Pairing], device: torch.device) -> None:
        self.matrix = torch.stack([one.matrix for one in pairings]).to(device)[:, None]
        self.blend = torch.stack([one.blend for one in pairings]).to(device)[:, None, None]
        self.factors = torch.stack([one.factors for one in pairings]).to(device)[:, None, None]

    def __call__(self, source: Tensor, target: Tensor, grid: Size) -> Tensor:
        """The targets' new probabilities [n, heads, h*w, L] from the sources' and their own."""
        return self._replaced(source, target, grid) * self.factors.to(target)

    def _replaced(self, source: Tensor, target: Tensor, grid: Size) -> Tensor:
        blend = self.blend.to(target)
        return blend * (source @ self.matrix.to(source)) + (1 - blend) * target


class Calibrated(PromptToPrompt):
    """As Prompt-to-Prompt, but words that took others' place attend where a heatmap says.

    The heatmap of the words that stood there, on the layer's grid, is mapped affinely to the range
    of their head-mean column in the source, and written to the columns of the new words in every
    head. Rows then need not sum to 1.
    """

    def __init__(
        self, pairings: Sequence[Pairing], heatmaps: Sequence[Tensor | None], device: torch.device
    ) -> None:
        """``heatmaps`` float32 [changes, H, W] in [0, 1], or None where there are none."""
        super().__init__(pairings, device)
        length = self.matrix.shape[-1]
        parts = [_parts(pairing, given) for pairing, given in zip(pairings, heatmaps, strict=True)]
        most = max(map(len, parts))
        self._reading = torch.zeros(len(parts), length, most)  # source columns' means
        self._writing = torch.zeros(len(parts), most, length)
        size = next((tuple(given.shape[1:]) for given in heatmaps if given is not None), (1, 1))
        self._heatmaps = torch.zeros(len(parts), most, *size)
        for row, found in enumerate(parts):
            ours = tuple(columns for columns, _, _ in found)
            spans = TokenSpans("", tuple(range(len(found))), ours, length)
            self._reading[row] = spans.averaging_matrix(most)
            for place, (_, theirs, heatmap) in enumerate(found):
                self._writing[row, place, list(theirs)] = 1
                self._heatmaps[row, place] = heatmap
        self._reading, self._writing = self._reading.to(device), self._writing.to(device)
        self._on_grid: dict[Size, Tensor] = {}

    def _replaced(self, source: Tensor, target: Tensor, grid: Size) -> Tensor:
        base = super()._replaced(source, target, grid)
        means = source.mean(1) @ self._reading.to(source)  # [n, h*w, parts]
        low, high = means.amin(1, keepdim=True), means.amax(1, keepdim=True)
        scaled = low + self._heat(grid).to(source) * (high - low)
        writing = self._writing.to(source)
        written = writing.sum(1).bool()[:, None, None]  # [n, 1, 1, L]
        return torch.where(written, (scaled @ writing)[:, None], base)

    def _heat(self, grid: Size) -> Tensor:
        """[n, h*w, parts] in [0, 1]: the heatmaps as means over a layer's cells."""
        if grid not in self._on_grid:
            cells = minmax(interpolate(self._heatmaps, grid, mode="area"), (2, 3))
            self._on_grid[grid] = cells.flatten(2).transpose(1, 2).to(self._reading)
        return self._on_grid[grid]


def _parts(
    pairing: Pairing, heatmaps: Tensor | None
) -> list[tuple[tuple[int, ...], tuple[int, ...], Tensor]]:
    """(source columns, target columns, heatmap [H, W]) of each change in each text stream."""
    if heatmaps is None:
        return []
    return [
        (ours, theirs, heatmap)
        for change, heatmap in zip(pairing.changes, heatmaps, strict=True)
        for ours, theirs in change.columns
    ]


def classes_of(pairing: Pairing, entities: Sequence[str]) -> tuple[list[Phrase], list[int]]:
    """The classes to align with the source picture, and which of them each change is of.

    An entity that holds the changed words stands for them, or they for themselves; such a class
    looks where its head noun does. The entities that do not change are there for the comparison,
    but those that are a part of changed words.
    """
    owners: list[str] = []
    found: dict[str, Phrase] = {}  # by phrase, in any case
    for change in pairing.changes:
        around = [
            one
            for one in entities
            if any(_within(change.span, place) for place in occurrences_of(one, pairing.source))
        ]
        phrase = around[0] if around else change.source
        head = head_noun(phrase) or (0, len(phrase))
        owners.append(phrase.casefold())
        found.setdefault(owners[-1], Phrase(phrase[slice(*head)], phrase))
    spans = [change.span for change in pairing.changes]
    for entity in entities:
        places = occurrences_of(entity, pairing.source)
        if not places or not all(any(_within(place, span) for span in spans) for place in places):
            found.setdefault(entity.casefold(), Phrase(entity))
    nouns = [one.name.casefold() for one in found.values()]
    classes = [
        one if nouns.count(one.name.casefold()) == 1 else Phrase(one.phrase)
        for one in found.values()
    ]
    return classes, [list(found).index(owner) for owner in owners]


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
