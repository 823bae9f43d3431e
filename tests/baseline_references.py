"""Slow, independent readings of METHODS.md section 3, to test the baselines against.

One timestep, class, layer, head and token at a time, every attention matrix materialised by
processors of its own, float32 on the CPU. Nothing of the package is imported; what METHODS leaves
open is named "open" in a docstring. ``trap`` puts a known mistake in, to show that it is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import StableDiffusionXLPipeline
from torch import Tensor

from materialised import Layer, Text, observe, split
from released import columns, encode, latent, minmax, resize, schedule

EVENLY = [round(float(t)) for t in torch.linspace(20, 200, 20, dtype=torch.float64)]


@dataclass
class Setting:
    """One picture for one method."""

    pipe: Any
    pixels: Tensor  # [1, 3, h, w]
    size: tuple[int, int]  # of the heatmaps
    classes: list[str]
    seed: int
    scores: Sequence[float] | None = None
    trap: str | None = None

    @property
    def pixel(self) -> tuple[int, int]:
        return self.pixels.shape[2], self.pixels.shape[3]

    def latents(self) -> Tensor:
        """METHODS: "the mean" of the posterior, unless the trap samples it."""
        if self.trap != "sampled":
            return latent(self.pipe, self.pixels)
        drawn = torch.Generator().manual_seed(99)
        posterior = self.pipe.vae.encode(self.pixels).latent_dist
        return posterior.sample(drawn) * self.pipe.vae.config.scaling_factor

    def text(self, prompt: str) -> Text:
        return encode(self.pipe, "" if self.trap == "unconditional" else prompt)

    def layers(self, z: Tensor, index: int, text: Text) -> list[Layer]:
        found = observe(self.pipe, z, index, text, self.pixel)
        for layer in found:
            if self.trap == "half-heads":  # "slicing 'the conditional half' at batch 1"
                layer.heads = layer.heads[len(layer.heads) // 2 :]
                layer.query = layer.query[len(layer.query) // 2 :]
            if self.trap == "swapped":
                layer.size = (layer.size[1], layer.size[0])
            if self.trap == "constant-self" and not layer.text:
                layer.heads = torch.full_like(layer.heads, 1 / layer.heads.shape[2])
        return found

    def noised(self, timesteps: Sequence[int]) -> list[tuple[int, Tensor]]:
        """Each step with the noised latent; noise [T, C, h, w] from the seed, one per step."""
        x = self.latents()
        noise = torch.randn(
            len(timesteps), *x.shape[1:], generator=torch.Generator().manual_seed(self.seed)
        )
        found = []
        for index, draw in zip(timesteps, noise, strict=True):
            alpha, sigma, _ = schedule(self.pipe, index)
            found.append((index, alpha * x + sigma * draw[None]))
        return found

    def power(self, one: Tensor, index: int) -> Tensor:
        """METHODS: "the cross-attention heatmap h becomes minmax(h)^(1/S_i)"."""
        return one if self.scores is None else minmax(one) ** (1 / self.scores[index])

    def finished(self, maps: list[Tensor]) -> Tensor:
        """METHODS: "bilinear to image, min-max"."""
        return torch.stack([minmax(resize(one[None], self.size)[0]) for one in maps])


def joined(classes: list[str]) -> str:
    return f"a photo of {', '.join(classes)}"


def shaped(layer: Layer, flat: Tensor) -> Tensor:
    return flat.reshape(layer.size)


# ----------------------------------------------------------------------------------------- DAAM


@torch.no_grad()
def daam(s: Setting, timesteps: Sequence[int] = EVENLY) -> Tensor:
    """METHODS: "cross-attention of down and up blocks (not mid, not 8x8) ... summed over time;
    bicubic to latent size, clamp >= 0, mean over layers and heads; word map = mean over the word's
    tokens"."""
    text, found = s.text(joined(s.classes)), columns(s.pipe.tokenizer, s.classes)
    sums: dict[tuple[int, int, int], Tensor] = {}  # layer, head, token
    for index, z in s.noised(timesteps):
        size = (z.shape[2], z.shape[3])
        chosen = [a for a in s.layers(z, index, text) if a.text and attributed(a)]
        for number, layer in enumerate(chosen):
            for head, probabilities in enumerate(layer.heads):
                for token in (token for tokens in found for token in tokens):
                    key = number, head, token
                    one = shaped(layer, probabilities[:, token])
                    sums[key] = sums[key] + one if key in sums else one
    maps = []
    for i, tokens in enumerate(found):
        by_token = []
        for token in tokens:
            large = [
                F.interpolate(one[None, None], size, mode="bicubic")[0, 0].clamp(min=0)
                for (_, _, own), one in sums.items()
                if own == token
            ]
            by_token.append(sum(large) / len(large))
        maps.append(s.power(sum(by_token) / len(by_token), i))
    return s.finished(maps)


def attributed(layer: Layer) -> bool:
    return layer.place in ("down", "up") and layer.factor < 8


# ----------------------------------------------------------------------------------------- OVAM


def unpadded(pipe: Any, prompt: str) -> Tensor:
    """[tokens, D]; METHODS: "attribution text encoded on its own **without padding**"."""
    if isinstance(pipe, StableDiffusionXLPipeline):
        parts = []
        pairs = (pipe.tokenizer, pipe.text_encoder), (pipe.tokenizer_2, pipe.text_encoder_2)
        for tokenizer, encoder in pairs:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            parts.append(encoder(ids, output_hidden_states=True).hidden_states[-2][0])
        return torch.cat(parts, -1)
    return pipe.text_encoder(pipe.tokenizer(prompt, return_tensors="pt").input_ids)[0][0]


def asked(stored: list[list[Layer]], tokens: Tensor) -> Tensor:
    """[K, h, w] of embeddings [K, D]; METHODS: "softmax over its own tokens, summed over time,
    heads, layers, bilinear". Open: the common size, here the finest layer's."""
    size = max(layer.size for layer in stored[0])
    total = torch.zeros(len(tokens), *size)
    for layers in stored:
        for layer in layers:
            key = split(layer.attn.to_k(tokens), layer.attn.heads)
            for query, own in zip(layer.query, key[-len(layer.query) :], strict=True):
                logits = query @ own.T * layer.attn.scale
                shares = torch.softmax(logits, -1)
                total = total + resize(shares.T.reshape(len(tokens), *layer.size), size)
    return total


def stored_queries(s: Setting, timesteps: Sequence[int]) -> list[list[Layer]]:
    text = s.text(joined(s.classes))
    return [
        [a for a in s.layers(z, index, text) if a.text and attributed(a)]
        for index, z in s.noised(timesteps)
    ]


@torch.no_grad()
def ovam(s: Setting, timesteps: Sequence[int] = EVENLY) -> Tensor:
    """Open: the attribution text, here the prompt with its start and end tokens."""
    tokens = unpadded(s.pipe, joined(s.classes))
    maps = asked(stored_queries(s, timesteps), tokens)
    found = columns(s.pipe.tokenizer, s.classes)
    return s.finished([s.power(maps[own].mean(0), i) for i, own in enumerate(found)])


def ovam_optimized(
    s: Setting, masks: Tensor, epochs: int, timesteps: Sequence[int] = EVENLY, rate: float = 300
) -> Tensor:
    """METHODS: "SGD, lr 300, x0.7 every 80 epochs ... categorical cross-entropy across the channels
    start-token = background and class token, after a joint min-max". Open: both embeddings move,
    the class's last token starts, the best epoch is kept, masks are compared at the input size."""
    with torch.no_grad():
        stored = stored_queries(s, timesteps)
        context = unpadded(s.pipe, joined(s.classes))
    maps = []
    for i, own in enumerate(columns(s.pipe.tokenizer, s.classes)):
        x = context[[0, own[-1]]].clone().requires_grad_(True)
        optimizer = torch.optim.SGD([x], lr=rate)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=80, gamma=0.7)
        mask = F.interpolate(masks[i][None, None].float(), s.pixel, mode="nearest-exact")[0, 0]
        best, lowest = x.detach().clone(), math.inf
        for _ in range(epochs):
            joint = minmax(resize(asked(stored, x), s.pixel))
            logs = torch.log_softmax(joint, 0)
            loss = -(logs[0] * (1 - mask) + logs[1] * mask).mean()
            if loss.item() < lowest:
                best, lowest = x.detach().clone(), loss.item()
            x.grad = torch.autograd.grad(loss, x)[0]
            optimizer.step()
            scheduler.step()
        with torch.no_grad():
            maps.append(s.power(asked(stored, best)[1], i))
    return s.finished(maps)


# -------------------------------------------------------------------------------- DiffSegmenter


@torch.no_grad()
def weighted(s: Setting, name: str) -> Text:
    """METHODS: "for w > 1: z = z_empty + w (z - z_empty) at those token positions"."""
    embeds, pooled = s.text(joined([name]))
    empty, _ = encode(s.pipe, "")
    embeds = embeds.clone()
    for token in columns(s.pipe.tokenizer, [name])[0]:
        embeds[0, token] = empty[0, token] + 1.21 * (embeds[0, token] - empty[0, token])
    return embeds, pooled


@torch.no_grad()
def diffsegmenter(s: Setting) -> Tensor:
    """METHODS: "one forward per class at t = 100 ... cross maps averaged per resolution, upsampled
    to 64, min-max per resolution, weights 8:.3, 16:.5, 32:.1, 64:.1; one multiplication by the mean
    64^2 self-attention". Open: weights of resolutions that are there are brought to sum 1, and the
    finest self-attention stands for 64^2."""
    by_factor = {8: 0.3, 4: 0.5, 2: 0.1, 1: 0.1}
    ((index, z),) = s.noised([100])
    maps = []
    for i, name in enumerate(s.classes):
        layers = s.layers(z, index, weighted(s, name))
        own = columns(s.pipe.tokenizer, [name])[0]
        finest = min(layer.factor for layer in layers if not layer.text)
        at_finest = [a for a in layers if not a.text and a.factor == finest]
        there = sorted({layer.factor for layer in layers if layer.text})
        total = torch.zeros(at_finest[0].size)
        for factor in there:
            alike = [a for a in layers if a.text and a.factor == factor]
            means = [shaped(a, a.heads.mean(0)[:, own].mean(1)) for a in alike]
            large = resize((sum(means) / len(means))[None], at_finest[0].size)[0]
            total += by_factor[factor] / sum(by_factor[f] for f in there) * minmax(large)
        attention = sum(a.heads.mean(0) for a in at_finest) / len(at_finest)
        refined = attention.double() @ s.power(total, i).flatten().double()
        maps.append(refined.reshape(total.shape))
    return s.finished(maps)


# -------------------------------------------------------------------------------------- DiffSeg


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Symmetric KL of p [P] and each q [M, P], halved."""
    logs = p.log() - q.log()
    return ((p * logs).sum(-1) - (q * logs).sum(-1)) / 2


@torch.no_grad()
def diffseg(s: Setting, anchors: int = 16, threshold: float = 0.9) -> tuple[Tensor, int]:
    """METHODS: "the **clean** latent (no noise) at t = 300, one forward; self-attention at
    64/32/16/8, head-mean, upsampled, row-normalised, weights ~ resolution; 16x16 anchor grid;
    iterative merge by symmetric KL (threshold 0.9, 3 iterations), non-maximum assignment; labels by
    cross-attention (weights 1,1,1,1, normalised over tokens then per-column L2) averaged inside
    each segment". Heatmaps and the number of segments. Open: queries are repeated; anchors stand at
    equal whole steps, centred; background is a label and, with scores, one of score 1."""
    prompt = joined(s.classes) + ", and background"
    z = s.noised([300])[0][1] if s.trap == "noised" else s.latents()
    layers = s.layers(z, 300, s.text(prompt))
    size = max(layer.size for layer in layers if not layer.text)
    total, weights = torch.zeros(*size, *size), 0.0
    for factor in sorted({layer.factor for layer in layers if not layer.text}):
        alike = [a for a in layers if not a.text and a.factor == factor]
        mean = sum(a.heads.mean(0) for a in alike) / len(alike)
        height, width = alike[0].size
        keys = resize(mean.reshape(-1, height, width), size)
        keys = keys / keys.sum((1, 2), keepdim=True)
        weights += 1 / factor
        for y in range(size[0]):
            for x in range(size[1]):
                row = (y * height // size[0]) * width + x * width // size[1]
                total[y, x] += keys[row] / factor
    rows = (total / weights).reshape(size[0] * size[1], -1).double()
    proposals = []
    for y in spaced(size[0], anchors):
        for x in spaced(size[1], anchors):
            close = divergence(rows[y * size[1] + x], rows) < threshold
            proposals.append(rows[close].mean(0))
    for _ in range(2):
        left, merged = list(range(len(proposals))), []
        stack = torch.stack(proposals)
        while left:
            close = divergence(stack[left[0]], stack) < threshold
            merged.append(stack[close].mean(0))
            left = [i for i in left[1:] if not close[i]]
        proposals = merged
    large = torch.stack([resize(p.reshape(1, *size), s.size)[0] for p in proposals])
    segments = large.argmax(0)
    tokens = columns(s.pipe.tokenizer, s.classes)
    tokens.append(after(s.pipe.tokenizer, prompt.removesuffix(" background"), prompt))
    return named(s, layers, tokens, segments), len(proposals)


def spaced(side: int, count: int) -> list[int]:
    count = min(count, side)
    step = (side - 1) // (count - 1)
    start = (side - 1 - step * (count - 1)) // 2
    return list(range(start, start + step * count, step))


def after(tokenizer: Any, before: str, whole: str) -> list[int]:
    """The columns that a longer text adds."""
    lengths = [len(tokenizer(t, add_special_tokens=False).input_ids) for t in (before, whole)]
    return [1 + position for position in range(*lengths)]


def named(s: Setting, layers: list[Layer], tokens: list[list[int]], segments: Tensor) -> Tensor:
    maps = []
    for own in tokens:
        total = torch.zeros(s.size)
        for factor in sorted({layer.factor for layer in layers if layer.text}):
            alike = [a for a in layers if a.text and a.factor == factor]
            mean = sum(a.heads.mean(0) for a in alike) / len(alike)
            mean = mean / mean.sum(1, keepdim=True)
            one = shaped(alike[0], mean[:, own].mean(1))
            total += resize(one[None], s.size)[0]
        maps.append(total)
    if s.scores is not None:
        powers = [*(1 / score for score in s.scores), 1.0]
        maps = [minmax(one) ** power for one, power in zip(maps, powers, strict=True)]
    maps = [one.double() / one.double().pow(2).sum().sqrt() for one in maps]
    heatmaps = torch.zeros(len(s.classes), *s.size)
    for number in segments.unique().tolist():
        inside = segments == number
        means = [float(one[inside].mean()) for one in maps]
        label = means.index(max(means))
        if label < len(s.classes):
            heatmaps[label][inside] = 1
    return heatmaps


# -------------------------------------------------------------------------------------- DiffPNG


@torch.no_grad()
def diffpng(s: Setting, timesteps: Sequence[int] = EVENLY) -> Tensor:
    """METHODS: "cross-attention at 16^2, bilinear to 32^2, min-max, anchors = pixels > 0.4, sum of
    the 32^2 self-attention rows at the anchors, min-max". Open: down and up blocks."""
    text, found = s.text(joined(s.classes)), columns(s.pipe.tokenizer, s.classes)
    cross: list[list[Tensor]] = [[] for _ in found]
    own: list[Tensor] = []
    for index, z in s.noised(timesteps):
        for layer in s.layers(z, index, text):
            if layer.place == "mid":
                continue
            mean = layer.heads.mean(0)
            if layer.text and layer.factor == 4:
                for i, tokens in enumerate(found):
                    cross[i].append(shaped(layer, mean[:, tokens].mean(1)))
            if not layer.text and layer.factor == 2:
                own.append(mean)
                size = layer.size
    attention = (sum(own) / len(own)).double()
    maps = []
    for i, parts in enumerate(cross):
        one = minmax(s.power(minmax(resize((sum(parts) / len(parts))[None], size)[0]), i))
        total = torch.zeros(size, dtype=torch.float64).flatten()
        for row in (one.flatten() > 0.4).nonzero().flatten().tolist():
            total += attention[row]
        maps.append(total.reshape(size))
    return s.finished(maps)
