"""Source and target drawn together from the same noise, the one writing into the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.attention.writing import AttentionWriter
from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.sampling import guided
from pixalign.editing.blending import LocalBlend, region
from pixalign.editing.methods import METHODS, Calibrated, PromptToPrompt
from pixalign.editing.walking import repeated
from pixalign.text.pairing import Columns, Pairing

BLENDS = ("attention", "heatmap", None)
_ROWS = 4  # of a batch for each pair: source and target, without and with their texts


@dataclass(frozen=True)
class EditSettings:
    """How pictures are edited.

    ``cross_replace`` and ``self_replace`` are the parts of the steps in which the target's
    attention to text and to itself is written, the latter in layers whose cells cover at least
    ``self_factor`` latent positions a side. ``blend`` keeps the rest as it is, from ``blend_start``
    on: "attention" edits where the words' attention is above ``blend_threshold`` of its maximum,
    "heatmap" where a heatmap reaches the alignment's threshold, None everywhere.
    """

    method: str = "elbo"
    steps: int = 50
    guidance: float = 7.5
    cross_replace: float = 0.8
    self_replace: float = 0.4
    self_factor: int = 2
    blend: str | None = "attention"
    blend_start: float = 0.2
    blend_threshold: float = 0.3

    def __post_init__(self) -> None:
        check_choice("method", self.method, tuple(METHODS))
        check_choice("blend", self.blend, BLENDS)
        for name in ("cross_replace", "self_replace", "blend_start", "blend_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 to 1")

    def within(self, index: int, part: float) -> bool:
        """Whether a step lies in the first part of the path."""
        return index / self.steps < part

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class Pair:
    """One edit, ready to be drawn.

    ``noise`` float32 [1, C, h, w]; ``unconditional`` float32 [T, L, D], or None for the model's
    own. ``heatmaps`` float32 [changes, H, W] are what is written, None for Prompt-to-Prompt's own
    maps. ``words`` are both sides' columns for the local blend, ``where`` the heatmaps and the
    threshold that take its place.
    """

    pairing: Pairing
    noise: Tensor
    unconditional: Tensor | None = None
    heatmaps: Tensor | None = None
    words: tuple[Columns, Columns] | None = None
    where: tuple[Tensor, float] | None = None


def draw_pairs(
    backbone: Backbone,
    pairs: Sequence[Pair],
    settings: EditSettings,
    batch_size: BatchSize,
    bar: Progress,
) -> tuple[Tensor, Tensor]:
    """The latents [B, C, h, w] of all sources and of all targets, in batches of whole pairs."""
    ends: list[tuple[Tensor, Tensor]] = []
    done = shown = 0

    def step(count: int) -> None:
        nonlocal shown
        shown += count
        bar.advance(count)

    def work(size: int) -> None:
        nonlocal done, shown
        bar.advance(-shown)  # a batch that failed begins anew
        shown = 0
        while done < len(pairs):
            part = pairs[done : done + max(1, size // _ROWS)]
            ends.append(_Drawing(backbone, part, settings).drawn(step))
            done, shown = done + len(part), 0

    batch_size.attempt(pairs[0].noise, _ROWS * len(pairs), "edit", work)
    sources, targets = zip(*ends, strict=True)
    return torch.cat(sources), torch.cat(targets)


class _Drawing:
    """Some pairs in the making: n of them, all in one batch."""

    def __init__(self, backbone: Backbone, pairs: Sequence[Pair], settings: EditSettings) -> None:
        self.backbone, self.pairs, self.settings = backbone, pairs, settings
        device = backbone.device
        self.path = backbone.schedule.path(settings.steps)
        self.noise = torch.cat([pair.noise for pair in pairs]).to(device)
        prompts = [pair.pairing.source for pair in pairs] + [pair.pairing.target for pair in pairs]
        self.texts = backbone.encode_text(prompts)
        self.empty = backbone.unconditional()
        self.writer = AttentionWriter(backbone.sites)
        differ = torch.tensor([pair.pairing.differs for pair in pairs])
        rows, written = differ.nonzero()[:, 0], [pair for pair in pairs if pair.pairing.differs]
        self.writer.sources = (rows + 2 * len(pairs)).to(device)
        self.writer.targets = (rows + 3 * len(pairs)).to(device)
        self.edit = _edit(written, device)

    def drawn(self, step: Callable[[int], None]) -> tuple[Tensor, Tensor]:
        """Go the whole path."""
        settings, backbone, count = self.settings, self.backbone, len(self.pairs)
        latent: Size = (self.noise.shape[-2], self.noise.shape[-1])
        blend, fixed = self._blend(latent)
        z = torch.cat([self.noise, self.noise])
        with ExitStack() as attached:
            attached.enter_context(self.writer.attached(backbone.denoiser))
            if blend is not None:
                attached.enter_context(blend.attached(backbone))
            for index in range(len(self.path)):
                z = self._step(index, z)
                if blend is not None:
                    blend.add()
                if not settings.within(index, settings.blend_start):
                    z = _blended(z, fixed if blend is None else blend.mask())
                step(count)
        source, target = z.chunk(2)
        return source, target

    def _step(self, index: int, z: Tensor) -> Tensor:
        """One guided step of latents [sources, targets]."""
        settings, backbone, writer = self.settings, self.backbone, self.writer
        far = settings.within(index, settings.self_replace)
        sites = [site for site in backbone.sites if site.factor >= settings.self_factor]
        writer.replaced = frozenset(sites if far else ())
        writer.edit = self.edit if settings.within(index, settings.cross_replace) else None
        text = TextCondition.concatenate([self._nothing(index), self.texts])
        both = torch.cat([z, z])
        output = backbone.predict(both, self.path.at(index, len(both)), text)
        away, towards = backbone.checked(output).chunk(2)
        moved = guided(towards, away, settings.guidance)
        return self.path.advance(backbone.objective, moved, z, index)

    def _nothing(self, index: int) -> TextCondition:
        """What guidance leads away from at a step, for sources and targets alike."""
        own = self.empty.embeds[0].float()
        embeds = [
            own if pair.unconditional is None else pair.unconditional[index].to(own)
            for pair in self.pairs
        ]
        return repeated(self.empty, 2 * len(embeds), torch.stack([*embeds, *embeds]))

    def _blend(self, latent: Size) -> tuple[LocalBlend | None, Tensor | None]:
        """Masks that are read on the way, or masks bool [n, 1, h, w] that are known, or neither."""
        settings, pairs = self.settings, self.pairs
        length = self.texts.embeds.shape[1]
        if settings.blend == "attention" and any(pair.words for pair in pairs):
            words = [pair.words for pair in pairs]
            backbone, threshold = self.backbone, settings.blend_threshold
            return LocalBlend(backbone, words, length, latent, threshold), None
        if settings.blend == "heatmap" and any(pair.where for pair in pairs):
            masks = [region(pair.where, latent) for pair in pairs]
            return None, torch.stack(masks).to(self.backbone.device)
        return None, None


def _blended(z: Tensor, mask: Tensor | None) -> Tensor:
    """Latents [sources, targets] with the sources' in the targets where the mask is not."""
    if mask is None:
        return z
    source, target = z.chunk(2)
    return torch.cat([source, torch.where(mask, target, source)])


def _edit(pairs: Sequence[Pair], device: torch.device) -> PromptToPrompt | None:
    """What is written for the pairs that differ."""
    pairings, heatmaps = [pair.pairing for pair in pairs], [pair.heatmaps for pair in pairs]
    if any(given is not None for given in heatmaps):
        return Calibrated(pairings, heatmaps, device)
    return PromptToPrompt(pairings, device) if pairs else None
