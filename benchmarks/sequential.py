"""The released computation as it is: one class and one timestep at a time.

The yardstick of `speed.py`, written plainly after the facts in the method's description. Every
attention layer materialises its probabilities in every pass, also where nobody reads them; each
class's heatmap costs a product of two whole self-attention matrices. From pixalign it takes the
loaded pipeline, the encoded texts and the noise schedule, nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pixalign.backbones import Backbone
from pixalign.core.values import TextCondition

PARTS = ("collect", "elbo", "heatmaps")


@dataclass(frozen=True)
class Job:
    """One image, N classes and all that is drawn or decided before the network runs.

    ``latents`` float32 [1, C, h, w]; ``prompts`` holds the classes (indices of ``names``) of each
    attention prompt, almost always a single one; steps are indices of the training schedule, with
    noise float32 [T, C, h, w] for each; ``size`` is the (height, width) of the heatmaps.
    """

    latents: Tensor
    names: Sequence[str]
    prompts: Sequence[Sequence[int]]
    collect_steps: Sequence[int]
    collect_noise: Tensor
    elbo_steps: Sequence[int]
    elbo_noise: Tensor
    size: tuple[int, int]
    gamma: float = 1 / 3


@dataclass(frozen=True)
class Outcome:
    """What one alignment gives and takes: losses [N, T], scores [N], heatmaps [N, H, W], all CPU.

    ``seconds`` has "total" and `PARTS`, ``forwards`` "total", "collect" and "elbo". Extrapolated,
    the seconds are those of a part of the work, scaled; losses that were not computed are NaN.
    """

    seconds: dict[str, float]
    forwards: dict[str, int]
    losses: Tensor
    scores: Tensor
    heatmaps: Tensor
    extrapolated: bool = False


class Clock:
    """Seconds between laps, with the device's work finished at each."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.laps: dict[str, float] = {}
        self._last = self._now()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to that name."""
        now = self._now()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


# ---- attention ----


@dataclass
class Store:
    """Head-mean attention float32 of a pass, by layer, in the order in which layers run.

    ``own`` is image to image [n, n], ``cross`` image to text [n, L].
    """

    own: dict[str, Tensor] = field(default_factory=dict)
    cross: dict[str, Tensor] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the pass."""
        self.own.clear()
        self.cross.clear()

    def add(self, other: Store) -> None:
        """Add another pass's maps to these."""
        for mine, theirs in ((self.own, other.own), (self.cross, other.cross)):
            for name, mean in theirs.items():
                mine[name] = mine[name] + mean if name in mine else mean


class Materialised:
    """Attention at batch 1 with explicit probabilities, in the network's number type.

    Serves a UNet's self- and cross-attention and SD3's joint attention over [image; text].
    """

    def __init__(self, name: str, store: Store) -> None:
        self.name, self.store = name, store

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
    ) -> Any:
        """hidden_states [1, n, D] of the image, encoder_hidden_states [1, L, D'] of the text."""
        if len(hidden_states) != 1 or hidden_states.ndim != 3 or attention_mask is not None:
            raise ValueError("only one plain sequence at a time")
        image, text = hidden_states, encoder_hidden_states
        joint = text is not None and attn.add_k_proj is not None
        source = image if text is None or joint else text
        query = _split(attn.to_q(image), attn.heads, attn.norm_q)
        key = _split(attn.to_k(source), attn.heads, attn.norm_k)
        value = _split(attn.to_v(source), attn.heads)
        if joint:
            added = _split(attn.add_q_proj(text), attn.heads, attn.norm_added_q)
            query = torch.cat([query, added], 1)
            added = _split(attn.add_k_proj(text), attn.heads, attn.norm_added_k)
            key = torch.cat([key, added], 1)
            value = torch.cat([value, _split(attn.add_v_proj(text), attn.heads)], 1)
        probabilities = ((query * attn.scale) @ key.transpose(1, 2)).softmax(-1)
        self._keep(probabilities.mean(0, dtype=torch.float32), image.shape[1], text is None, joint)
        mixed = (probabilities @ value).transpose(0, 1).flatten(1)[None]  # [1, n (+ L), D]
        count = image.shape[1]
        output = attn.to_out[1](attn.to_out[0](mixed[:, :count]))
        if not joint:
            output = output + image if attn.residual_connection else output
            return output / attn.rescale_output_factor
        rest = mixed[:, count:]
        return output, rest if attn.context_pre_only else attn.to_add_out(rest)

    def _keep(self, mean: Tensor, count: int, alone: bool, joint: bool) -> None:
        if alone or joint:
            self.store.own[self.name] = mean[:count, :count]
        if not alone:
            self.store.cross[self.name] = mean[:count, count:] if joint else mean


def _split(states: Tensor, heads: int, norm: Any = None) -> Tensor:
    """[1, n, heads * d] as [heads, n, d], normed where the layer does so."""
    parts = states[0].unflatten(-1, (heads, -1)).transpose(0, 1)
    return parts if norm is None else norm(parts)


@contextmanager
def materialised(network: Any) -> Iterator[Store]:
    """Let every attention layer of the network store its maps; the stock processors come back."""
    store, stock = Store(), dict(network.attn_processors)
    network.set_attn_processor({name: Materialised(name, store) for name in stock})
    try:
        yield store
    finally:
        network.set_attn_processor(dict(stock))  # diffusers empties the dictionary it is given
        store.clear()


# ---- the computation ----


class Sequential:
    """The released computation on one job, in three parts that can be timed."""

    def __init__(self, backbone: Backbone, job: Job) -> None:
        self.backbone, self.job = backbone, job
        self.pipe, self.network = backbone.pipe, backbone.denoiser
        self.forwards = {"collect": 0, "elbo": 0}
        height, width = (side * backbone.vae_factor for side in job.latents.shape[-2:])
        sizes = torch.tensor([[height, width, 0, 0, height, width]])  # what SDXL is told
        self.sizes = sizes.to(job.latents.device, self.network.dtype)

    def counts(self) -> dict[str, int]:
        """How many pieces each part consists of: passes, passes, heatmaps."""
        job = self.job
        return {
            "collect": len(job.prompts) * len(job.collect_steps),
            "elbo": len(job.names) * len(job.elbo_steps),
            "heatmaps": len(job.names),
        }

    @torch.no_grad()
    def run(self, pieces: dict[str, int] | None = None) -> Outcome:
        """Do everything, or only that many pieces of each part, and scale the seconds."""
        counts = self.counts()
        pieces = pieces or counts
        clock = Clock(self.job.latents.device)
        self.forwards = {"collect": 0, "elbo": 0}
        with materialised(self.network) as store:
            sums = self._collect(store, pieces["collect"])
            clock.lap("collect")
            losses, bounds = self._losses(store, pieces["elbo"])
            clock.lap("elbo")
        whole = pieces == counts
        scores = self.job.gamma ** _minmax(bounds) if whole else torch.ones_like(bounds)
        heatmaps = self._heatmaps(sums, scores, pieces["heatmaps"])
        clock.lap("heatmaps")
        seconds = {part: clock.laps[part] * counts[part] / pieces[part] for part in PARTS}
        passes = {part: counts[part] for part in self.forwards} if not whole else self.forwards
        return Outcome(
            seconds={"total": sum(seconds.values()), **seconds},
            forwards={"total": sum(passes.values()), **passes},
            losses=losses.cpu(),
            scores=scores.cpu(),
            heatmaps=heatmaps,
            extrapolated=not whole,
        )

    def pieces_within(self, limit: float) -> dict[str, int] | None:
        """What fits into that many seconds, or None where everything does; warms up first."""
        one = dict.fromkeys(PARTS, 1)
        self.run(one)
        if limit == math.inf:
            return None
        expected = self.run({**one, "elbo": len(self.job.elbo_steps)}).seconds["total"]
        if expected <= limit:
            return None
        return {
            part: max(1, int(count * limit / expected)) for part, count in self.counts().items()
        }

    def _losses(self, store: Store, pieces: int) -> tuple[Tensor, Tensor]:
        """Squared epsilon-errors [N, T] and each class's mean loss [N], class after class.

        Under a flow the mean is that of the raw flow error.
        """
        job = self.job
        shape = len(job.names), len(job.elbo_steps)
        losses = torch.full(shape, torch.nan, device=job.latents.device)
        trained = losses.clone()
        for row, name in enumerate(job.names):
            if row * shape[1] >= pieces:
                break
            text = self.backbone.encode_text([f"a photo of {name}"])
            for column, index in enumerate(job.elbo_steps[: pieces - row * shape[1]]):
                noise = job.elbo_noise[column : column + 1]
                z, output, (alpha, sigma) = self._forward(store, text, index, noise, "elbo")
                estimate = _epsilon(self.backbone.objective, output, z, alpha, sigma)
                losses[row, column] = (estimate - noise).square().mean()
                if self.backbone.objective == "flow":
                    trained[row, column] = (output - (noise - job.latents)).square().mean()
                else:
                    trained[row, column] = losses[row, column]
        return losses, trained.mean(1)

    def _collect(self, store: Store, pieces: int) -> list[Store]:
        """Each prompt's attention of all layers, summed over the timesteps."""
        sums: list[Store] = []
        for classes in self.job.prompts:
            sums.append(Store())
            text = self.backbone.encode_text([self._prompt(classes)])
            for index, noise in zip(self.job.collect_steps, self.job.collect_noise, strict=True):
                if self.forwards["collect"] < pieces:
                    self._forward(store, text, index, noise[None], "collect")
                    sums[-1].add(store)
        return sums

    def _forward(
        self, store: Store, text: TextCondition, index: int, noise: Tensor, part: str
    ) -> tuple[Tensor, Tensor, tuple[float, float]]:
        """One pass at batch 1: the noised latents, the network's output, and (alpha, sigma)."""
        store.clear()
        self.forwards[part] += 1
        step = self.backbone.schedule.at_indices([index])
        alpha, sigma, told = float(step.alpha), float(step.sigma), float(step.time)
        z = alpha * self.job.latents + sigma * noise
        moment = torch.full((1,), told, device=z.device)  # filled there: a copy would wait
        states = {"encoder_hidden_states": text.embeds, "return_dict": False}
        asked = z.to(self.network.dtype)
        if self.backbone.family == "sd3":
            states["pooled_projections"] = text.pooled
            output = self.network(hidden_states=asked, timestep=moment, **states)[0]
            return z, output.float(), (alpha, sigma)
        if self.backbone.family == "sdxl":
            states["added_cond_kwargs"] = {"text_embeds": text.pooled, "time_ids": self.sizes}
        output = self.network(asked, moment.long(), **states)[0]
        return z, output.float(), (alpha, sigma)

    def _heatmaps(self, sums: list[Store], scores: Tensor, pieces: int) -> Tensor:
        """minmax(S2 S1 minmax(A) ** (1 / S)) at the image's size: float32 [N, H, W] on the CPU."""
        job = self.job
        first, second = self._self_attention(sums)
        heatmaps = torch.full((len(job.names), *job.size), torch.nan)
        done = 0
        for store, classes in zip(sums, job.prompts, strict=True):
            columns = self._columns(classes)
            seen = store if store.cross else sums[0]  # where only a part was collected
            for index in classes:
                if done == pieces:
                    break
                done += 1
                sharp = _minmax(self._cross(seen, columns[index])) ** (1 / scores[index])
                product = second @ first  # n^3, for every class anew
                refined = (product @ sharp.reshape(-1, 1)).reshape(sharp.shape)
                heatmaps[index] = _minmax(_resize(refined, job.size)).cpu()
        return heatmaps

    def _cross(self, store: Store, columns: slice) -> Tensor:
        """A class's weighted mean over layers [h, w], at the first layer's resolution."""
        grids = [self._grid(len(layer)) for layer in store.cross.values()]
        weights = self._weights(list(store.cross), grids)
        total = torch.zeros(grids[0], device=self.job.latents.device)
        for layer, grid, weight in zip(store.cross.values(), grids, weights, strict=True):
            one = layer[:, columns].mean(1).reshape(grid) / len(self.job.collect_steps)
            total = total + weight * _resize(one, grids[0])
        return total / sum(weights)

    def _weights(self, names: list[str], grids: list[tuple[int, int]]) -> list[float]:
        """15, 10, 1, 1 from the lowest resolution up (of two: 15, 1); SD3: a bell over layers."""
        if self.backbone.family == "sd3":
            middle = (len(names) - 1) / 2
            return [math.exp(-((place - middle) ** 2) / 18) for place in range(len(names))]
        lowest_first = sorted(set(grids))
        ranked = (15.0, 1.0) if len(lowest_first) == 2 else (15.0, 10.0, 1.0, 1.0)
        return [ranked[lowest_first.index(grid)] for grid in grids]

    def _self_attention(self, sums: list[Store]) -> tuple[Tensor, Tensor]:
        """S1 of all layers of highest resolution and S2 of those on the way up; else S1 twice."""
        layers: dict[str, Tensor] = {}
        for store in sums:
            for name, total in store.own.items():
                layers[name] = layers[name] + total if name in layers else total
        most = max(len(layer) for layer in layers.values())
        passes = len(sums) * len(self.job.collect_steps)
        highest = {name: one / passes for name, one in layers.items() if len(one) == most}
        every = sum(highest.values()) / len(highest)
        if self.backbone.family != "sd":
            return every, every
        up = [layer for name, layer in highest.items() if name.startswith("up_blocks")]
        return every, sum(up) / len(up)

    def _grid(self, positions: int) -> tuple[int, int]:
        """(height, width) of a layer with that many positions."""
        for factor in (1, 2, 4, 8, 16):
            height, width = (math.ceil(side / factor) for side in self.job.latents.shape[-2:])
            if height * width == positions:
                return height, width
        raise ValueError(f"{positions} positions are no grid of {tuple(self.job.latents.shape)}")

    def _prompt(self, classes: Sequence[int]) -> str:
        return "a photo of " + ", ".join(self.job.names[index] for index in classes)

    def _columns(self, classes: Sequence[int]) -> dict[int, slice]:
        """Each class's text columns: those of the tokens that its name adds to the prompt."""

        def count(text: str) -> int:
            return len(self.pipe.tokenizer(text, add_special_tokens=False)["input_ids"])

        found, written = {}, "a photo of"
        for index in classes:
            start, written = count(written), f"{written} {self.job.names[index]}"
            found[index] = slice(1 + start, 1 + count(written))  # after the start token
            written += ","
        return found


def _epsilon(objective: str, output: Tensor, z: Tensor, alpha: float, sigma: float) -> Tensor:
    """The noise estimate behind the network's output [1, C, h, w]."""
    if objective == "epsilon":
        return output
    if objective == "velocity":
        return alpha * output + sigma * z  # alpha^2 + sigma^2 = 1
    if objective == "flow":
        return z + alpha * output  # alpha = 1 - sigma
    raise ValueError(f"objective is {objective!r}; allowed: epsilon, velocity, flow")


def _minmax(values: Tensor) -> Tensor:
    """To [0, 1]; what is constant becomes 0."""
    low, high = values.min(), values.max()
    return torch.where(high > low, (values - low) / (high - low), torch.zeros_like(values))


def _resize(one: Tensor, size: tuple[int, int]) -> Tensor:
    """A map [h, w] at another size, bilinearly."""
    return interpolate(one[None, None], size, mode="bilinear", align_corners=False)[0, 0]
