"""OVAM (Marcos-Manchón et al., 2024): the network's queries asked about a text of their own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from pixalign.alignment.collect import AttentionQuery, AttributionText
from pixalign.alignment.heatmaps import to_image
from pixalign.alignment.plan import PromptPlan
from pixalign.alignment.request import EncodedImage
from pixalign.alignment.result import MethodOutput
from pixalign.alignment.task import AlignmentTask
from pixalign.attention import Site, cross_keys, text_layers
from pixalign.backbones import Backbone
from pixalign.core.maps import resize
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Size, TextCondition
from pixalign.methods.baseline import EVENLY, Baseline
from pixalign.methods.daam import attribution_sites

UNKNOWN = 255  # in target masks: neither the class nor background


class Ovam(Baseline):
    """DAAM's layers and steps; the softmax runs over the prompt's own tokens, without padding.

    Maps are summed over steps, heads and layers (bilinear, at the finest layer's resolution); a
    class is the mean of its tokens. Then bilinear to the picture and min-max. The attribution text
    is the prompt, start and end tokens included; a causal text encoder gives them the same
    embeddings with and without padding. Resolutions that a model lacks are left out of the sum.
    """

    name = "ovam"

    @classmethod
    def reads(cls, backbone: Backbone) -> bool:
        """Layers that read a causal encoder's tokens from the first column, as they are encoded."""
        own = all(stream.kind == "clip" for stream in backbone.streams)
        return super().reads(backbone) and own

    def find(self, task: AlignmentTask) -> MethodOutput:
        texts, spans = self.read_prompts(task)
        query = self.query(task, texts)
        # What is collected are means over heads; the weights turn them into sums.
        heads = {
            name: float(site.module.heads)  # type: ignore[arg-type]
            for name, site in zip(text_layers(query.cross).names, query.cross, strict=True)
        }
        cross = self.collected(task, texts, spans, query).combined(query.cross, heads)
        return MethodOutput(to_image(task.calibrated(cross), task.size), cross, _record(query))

    def query(self, task: AlignmentTask, texts: TextCondition) -> AttentionQuery:
        """The layers, asked about the tokens of each prompt alone."""
        lengths = [
            max(len(stream.offsets(prompt.text)) for stream in self.backbone.streams)
            for prompt in task.prompts
        ]
        sites = attribution_sites(self.backbone.sites)
        return AttentionQuery(sites, text=AttributionText.of(texts.embeds, lengths))


class OvamOptimized(Ovam):
    """OVAM with each class's token optimised against its true mask: supervised.

    The text is two tokens, the start (background) and the class's last, which has read the others.
    Both embeddings are optimised as in the original: stochastic gradient descent from ``rate``,
    times ``decay`` every ``decay_every`` epochs, on the cross-entropy between the masks and the two
    maps after a joint min-max, at the model's input size. Pixels of `UNKNOWN` do not count. The
    best of all epochs is kept. Everything is float32 and nothing of the network changes.
    """

    name = "ovam-optimized"
    supervised = True

    def __init__(
        self,
        model: AlignmentModel,
        *,
        timesteps: Sequence[int] = EVENLY,
        epochs: int = 1000,
        rate: float = 300.0,
        decay: float = 0.7,
        decay_every: int = 80,
    ) -> None:
        super().__init__(model, timesteps=timesteps)
        if epochs < 1 or decay_every < 1:
            raise ValueError(
                f"epochs and decay_every are {epochs!r} and {decay_every!r}; allowed: from 1"
            )
        self.epochs, self.rate, self.decay, self.decay_every = epochs, rate, decay, decay_every

    def targets(self, mask: Any, plan: PromptPlan, encoded: EncodedImage) -> Tensor:
        wanted = (len(plan.phrases), encoded.image.height, encoded.image.width)
        if mask is None:
            raise ValueError(f"target_masks are missing; {self.name} needs bool {list(wanted)}")
        values = np.asarray(mask)
        whole = values.dtype == bool or np.issubdtype(values.dtype, np.integer)
        if not whole or values.shape != wanted or not np.isin(values, (0, 1, UNKNOWN)).all():
            raise ValueError(
                f"target_masks are {values.dtype} {list(values.shape)}; allowed: bool "
                f"{list(wanted)}, or integers 0, 1 and {UNKNOWN}"
            )
        return torch.from_numpy(values.astype(np.uint8))

    def find(self, task: AlignmentTask) -> MethodOutput:
        texts, spans = self.read_prompts(task)
        query = dataclasses.replace(self.query(task, texts), keep_queries=True)
        collected = self.collected(task, texts, spans, query)
        assert task.targets is not None
        height, width = (side * self.backbone.vae_factor for side in task.latent)
        maps: dict[int, Tensor] = {}
        steps = len(self.indices)
        for place, span in enumerate(spans):
            own = slice(place * steps, (place + 1) * steps)
            queries = {site: query[own] for site, query in collected.queries.items()}
            asked = _Asked(queries, task.latent)
            for index, columns in zip(span.classes, span.columns, strict=True):
                start = texts.embeds[place, [0, max(columns)]].float()
                mask = task.targets[index].to(start.device)
                wanted = torch.stack([mask == 0, mask == 1]).float()  # neither where unknown
                target = interpolate(wanted[None], (height, width), mode="nearest-exact")
                best = self._optimised(asked, start, target)
                with torch.no_grad():
                    maps[index] = asked.maps(best)[1]
        cross = torch.stack([maps[index] for index in range(len(maps))])
        record = {**_record(query), "epochs": self.epochs}
        return MethodOutput(to_image(task.calibrated(cross), task.size), cross, record)

    def _optimised(self, asked: _Asked, start: Tensor, target: Tensor) -> Tensor:
        """The embeddings [2, D] of lowest loss against target [1, 2, H, W] of 0 and 1.

        The loss is the mean over the pixels that have a target.
        """
        tokens, best, lowest = start, start, torch.inf
        size, pixels = (target.shape[-2], target.shape[-1]), target.sum().clamp_min(1)
        for epoch in range(self.epochs):
            tokens = tokens.detach().requires_grad_(True)
            with torch.enable_grad():
                maps = resize(asked.maps(tokens), size)
                low, high = maps.min(), maps.max()
                scaled = ((maps - low) / (high - low))[None]
                loss = cross_entropy(scaled, target, reduction="sum") / pixels
                (slope,) = torch.autograd.grad(loss, tokens)
            if loss.item() < lowest:
                best, lowest = tokens.detach(), loss.item()
            tokens = tokens - self.rate * self.decay ** (epoch // self.decay_every) * slope
        return best


class _Asked:
    """Queries [T, heads, h*w, d] of some layers, and float32 copies of the layers."""

    def __init__(self, queries: Mapping[Site, Tensor], latent: Size) -> None:
        self.parts: list[tuple[nn.Module, Tensor, Size]] = []
        for site, query in queries.items():
            layer = copy.deepcopy(site.module).float().requires_grad_(False)
            self.parts.append((layer, query, site.grid(latent)))
        self.size = max((grid for *_, grid in self.parts), key=lambda grid: grid[0] * grid[1])

    def maps(self, tokens: Tensor) -> Tensor:
        """[K, h, w] of embeddings [K, D]: sums over steps, heads and layers."""
        total = tokens.new_zeros(len(tokens), *self.size)
        for layer, query, grid in self.parts:
            key = cross_keys(layer, tokens[None])
            scale = float(layer.scale)  # type: ignore[arg-type]
            shares = (query * scale @ key.transpose(2, 3)).softmax(-1).sum((0, 1))
            total = total + resize(shares.T.reshape(len(tokens), *grid), self.size)
        return total


def _record(query: AttentionQuery) -> dict[str, Any]:
    return {"cross_factors": sorted({site.factor for site in query.cross})}
