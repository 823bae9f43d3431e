"""The alignment gates: does cross-attention find the objects yet? Printed while training runs.

Masks serve here alone, to measure; training never sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lab.data import encode, in_parts, rendered
from pixalign.attention import AttentionReader, Site, text_layers
from pixalign.attention.layers import combine_layers
from pixalign.backbones import Backbone
from pixalign.core.maps import resize
from pixalign.core.values import Phrase
from pixalign.model import load
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import APART, draw_scenes
from pixalign.scenes.sample import SLOTS, concatenate, sample_scenes
from pixalign.text.prompts import Prompt, compose

POSITIONS = (0.1, 0.3, 0.5)  # of the noise schedule
_BATCH = 64


@dataclass(frozen=True)
class GateScenes:
    """Val scenes, encoded once: the first ``several`` hold 2-4 objects, the others one.

    ``latents`` [B, C, h, w]; ``columns`` [B, L, K + 1] averages the text columns of each class
    and sums, in the last place, those of start, end and padding; ``objects`` [B, K, s, s] are the
    classes' masks, all zero where there is no class; ``noise`` [T, C, h, w].
    """

    latents: Tensor
    prompts: tuple[str, ...]
    columns: Tensor
    objects: Tensor
    noise: Tensor
    several: int

    @classmethod
    def draw(
        cls, backbone: Backbone, *, scenes: int, single: int, size: int, device: str
    ) -> GateScenes:
        """``scenes`` with 2, 3 and 4 objects in equal parts and ``single`` with one."""
        length = backbone.encode_text([""]).embeds.shape[1]
        alone = sample_scenes("val", APART, single, objects=1)
        drawn = rendered(concatenate([draw_scenes("val", scenes), alone]), size, device)
        latents = in_parts(lambda part: encode(backbone.pipe.vae, part), drawn.images)
        prompts, columns, objects = [], [], []
        for labels, mask in zip(drawn.labels.tolist(), drawn.masks, strict=True):
            present = list(dict.fromkeys(label for label in labels if label >= 0))
            phrases = [Phrase(class_names()[label]) for label in present]
            prompt = compose(phrases, range(len(phrases)), "a photo of {}")
            prompts.append(prompt.text)
            columns.append(_averaging(backbone, prompt, length))
            own = [mask == label + 1 for label in present]
            none = [torch.zeros_like(own[0])] * (SLOTS - len(own))
            objects.append(torch.stack([*own, *none]).float())
        shape = (len(POSITIONS), *latents.shape[1:])
        return cls(
            latents=latents,
            prompts=tuple(prompts),
            columns=torch.stack(columns).to(device),
            objects=torch.stack(objects),
            noise=torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device),
            several=len(drawn.images) - single,
        )


def _averaging(backbone: Backbone, prompt: Prompt, length: int) -> Tensor:
    """[L, K + 1] for the columns of the classes and of everything that is no word."""
    tokenizer = backbone.streams[0].tokenizer
    words = len(tokenizer(prompt.text, add_special_tokens=False)["input_ids"])
    matrix = torch.zeros(length, SLOTS + 1)
    for index, columns in enumerate(backbone.columns(prompt.text, prompt.spans, length)):
        matrix[list(columns), index] = 1 / len(columns)
    matrix[:, SLOTS] = 1
    matrix[1 : 1 + words, SLOTS] = 0
    return matrix


@torch.no_grad()
def measure_gates(backbone: Backbone, scenes: GateScenes) -> dict[str, Any]:
    """The gates of a model.

    "layers" holds `layer_gates` of each layer that reads text and of the mean of all, by position
    of the schedule, on the finest layer's grid, so that all are measured on the same objects;
    "pointing" the share of single-object scenes whose mean map is highest on the object.
    """
    sites = [site for site in backbone.sites if site.reads_text]
    names = text_layers(sites).names
    layers: dict[str, dict[str, Any]] = {}
    pointing: dict[str, float] = {}
    for index, position in enumerate(f"{position:g}" for position in POSITIONS):
        maps = _read(backbone, sites, scenes, index)
        height, width = max((m.shape[-2:] for m in maps), key=lambda grid: grid[0] * grid[1])
        named = {n: resize(m, (height, width)) for n, m in zip(names, maps, strict=True)}
        named["all"] = _combined(maps, sites)
        for name, values in named.items():
            entry = layer_gates(values[: scenes.several], scenes.objects[: scenes.several])
            layers.setdefault(name, {})[position] = entry
        single, objects = (x[scenes.several :, 0] for x in (named["all"], scenes.objects))
        pointing[position] = pointing_share(single, objects)
    first = next(iter(pointing))
    best = max((name for name in layers if name != "all"), key=lambda n: layers[n][first]["other"])
    return {
        "auc_other_best": layers[best][first]["other"],
        "auc_other_all": layers["all"][first]["other"],
        "pointing_first": pointing[first],
        "best": best,
        "pointing": pointing,
        "layers": layers,
    }


def evaluate_gates(folder: str | Path, scenes: int, single: int, device: str) -> dict[str, Any]:
    """The gates of a saved pipeline."""
    backbone = load(folder, device=device, dtype="float32").backbone
    size, device = backbone.native_size[0], str(backbone.device)
    drawn = GateScenes.draw(backbone, scenes=scenes, single=single, size=size, device=device)
    return measure_gates(backbone, drawn)


def _read(backbone: Backbone, sites: list[Site], scenes: GateScenes, index: int) -> list[Tensor]:
    """Each site's maps [B, K + 1, h, w] at one of POSITIONS."""
    positions = torch.full((len(scenes.latents),), POSITIONS[index])
    steps, text = backbone.schedule.at_positions(positions), backbone.encode_text(scenes.prompts)
    noised = steps.noised(scenes.latents, scenes.noise[index].expand_as(scenes.latents))
    reader = AttentionReader(sites)
    parts: list[list[Tensor]] = []
    with reader.attached(backbone):
        for rows in torch.split(torch.arange(len(noised)), _BATCH):
            reader.columns = scenes.columns[rows]
            backbone.predict(noised[rows], steps[rows], text[rows])
            parts.append([reader.cross[site] for site in sites])
    return [torch.cat(maps) for maps in zip(*parts, strict=True)]


def _combined(maps: Sequence[Tensor], sites: Sequence[Site]) -> Tensor:
    """The plain mean over layers, each map first divided by its own mean: [B, K + 1, h, w]."""
    scaled = []
    for layer in maps:
        means = layer.mean((2, 3), keepdim=True).clamp_min(1e-12)
        means[:, -1] = 1  # the mass on start, end and padding stays what it is
        scaled.append(layer / means)
    return combine_layers(scaled, text_layers(sites), "uniform")


def layer_gates(maps: Tensor, objects: Tensor) -> dict[str, float]:
    """Of one layer's maps [B, K + 1, h, w] under masks [B, K, s, s]: the mass on start, end and
    padding, and the AUC inside a class's own object against other objects and background."""
    share = functional.interpolate(objects, maps.shape[-2:], mode="area")
    own = share > 0.5  # [B, K, h, w]
    others = (own.sum(1, keepdim=True) - own.long()) > 0
    background = (share.sum(1, keepdim=True) < 0.5).expand_as(own)
    values = maps[:, :-1]
    return {
        "sink": float(maps[:, -1].mean()),
        "other": float(separation(values, own, others).nanmean()),
        "background": float(separation(values, own, background).nanmean()),
    }


def separation(maps: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """AUC [...]: how often a cell inside exceeds one outside, ties counting half.

    Maps and boolean masks [..., h, w]; NaN where either side has no cell.
    """
    values, positive, negative = (x.flatten(-2).contiguous() for x in (maps, inside, outside))
    ranked = values.masked_fill(~negative, torch.inf).sort(-1).values
    below = torch.searchsorted(ranked, values, right=False)
    upto = torch.searchsorted(ranked, values, right=True)
    wins = ((below + upto) / 2 * positive).sum(-1)
    pairs = positive.sum(-1) * negative.sum(-1)
    return torch.where(pairs > 0, wins / pairs.clamp_min(1), torch.nan)


def pointing_share(maps: Tensor, objects: Tensor) -> float:
    """The share of maps [B, h, w] whose highest cell is mostly the object, masks [B, s, s]."""
    share = functional.interpolate(objects[:, None], maps.shape[-2:], mode="area")[:, 0]
    highest = maps.flatten(1).argmax(1, keepdim=True)
    return float((share.flatten(1).gather(1, highest) > 0.5).float().mean())


def format_gates(result: Mapping[str, Any]) -> str:
    """The gates as a few lines: for each layer and position, sink mass and both AUCs."""
    pointing = result["pointing"]
    lines = ["gates     " + "".join(f" | t={p:<4} sink other backg" for p in pointing)]
    cell = " |        {sink:.2f}  {other:.3f} {background:.3f}"
    for name, entries in result["layers"].items():
        lines.append(f"{name:<10}" + "".join(cell.format(**entry) for entry in entries.values()))
    shares = " ".join(f"t={p} {value:.2f}" for p, value in pointing.items())
    return "\n".join([*lines, f"pointing (one object) {shares}; best layer {result['best']}"])
