"""What is written into the target's attention: Prompt-to-Prompt, and heatmaps in its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pixalign.core.maps import minmax
from pixalign.core.values import Size
from pixalign.text.pairing import Columns, Pairing


class PromptToPrompt:
    """Hertz et al., 2023: words attend where the source's words do.

    A target map becomes blend (A_source M) + (1 - blend) A_target, each column times its factor.
    """

    def __init__(self, pairings: Sequence[Pairing], device: torch.device) -> None:
        self.matrix = torch.stack([pairing.matrix for pairing in pairings]).to(device)[:, None]
        self.blend = torch.stack([pairing.blend for pairing in pairings]).to(device)[:, None, None]
        self.factors = torch.stack([pairing.factors for pairing in pairings]).to(device)[
            :, None, None
        ]

    def __call__(self, source: Tensor, target: Tensor, grid: Size) -> Tensor:
        """The targets' new probabilities [n, heads, h*w, L] from the sources' and their own.

        Columns behind those of the texts, such as a batch's padding, stay the targets'.
        """
        length = self.matrix.shape[-1]
        replaced = self._replaced(source[..., :length], target[..., :length], grid)
        edited = replaced * self.factors.to(target)
        return torch.cat([edited, target[..., length:]], dim=-1)

    def _replaced(self, source: Tensor, target: Tensor, grid: Size) -> Tensor:
        blend = self.blend.to(target)
        return blend * (source @ self.matrix.to(source)) + (1 - blend) * target


class HeatmapInjection(PromptToPrompt):
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
        for row, written in enumerate(parts):
            for part, (ours, theirs, heatmap) in enumerate(written):
                self._reading[row, list(ours), part] = 1 / len(ours)
                self._writing[row, part, list(theirs)] = 1
                self._heatmaps[row, part] = heatmap
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


def _parts(pairing: Pairing, heatmaps: Tensor | None) -> list[tuple[Columns, Columns, Tensor]]:
    """(source columns, target columns, heatmap [H, W]) of each change in each text stream."""
    if heatmaps is None:
        return []
    return [
        (ours, theirs, heatmap)
        for change, heatmap in zip(pairing.changes, heatmaps, strict=True)
        for ours, theirs in change.columns
    ]
