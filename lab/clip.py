"""A small CLIP of scenes and captions: transformers' own class, for a score that works offline."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from lab.data import in_parts, rendered, sampled_ahead
from lab.hard_negatives import KINDS, tinted, without_one, wrong_captions
from lab.loop import Stage, compiled
from lab.networks import copy_as, parameter_count, tower_settings
from lab.recipe import Recipe
from lab.vocabulary import CaptionEncoder, build_tokenizer
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.sample import SceneBatch, attribute_captions, full_captions, sample_scenes

CHOICES = 32  # captions among which the right one is to be found


@dataclass(frozen=True)
class Described:
    """Scenes and what is said of them: token ids int16 [B, L] and, for wrong, [B, kinds, L]."""

    scenes: SceneBatch
    plain: Tensor
    rich: Tensor
    wrong: Tensor


def describe(scenes: SceneBatch, share: float, seed: int) -> Described:
    """Tint more objects and write every caption; a function of the scenes and the seed."""
    rng = np.random.Generator(np.random.Philox(key=[91, seed]))
    scenes, encoder = tinted(scenes, share, rng), _encoder()
    wrong = [encoder(wrong_captions(scenes, kind, rng)) for kind in KINDS]
    return Described(
        scenes,
        plain=encoder(full_captions(scenes)).short(),
        rich=encoder(attribute_captions(scenes)).short(),
        wrong=torch.stack(wrong, 1).short(),
    )


@cache
def _encoder() -> CaptionEncoder:
    return CaptionEncoder(build_tokenizer())


def described_scenes(share: float, start: int, count: int) -> Described:
    """Train scenes from a number on."""
    return describe(sample_scenes("train", start, count), share, start)


class ClipStage(Stage):
    """Contrast of pictures and captions, each picture's nearly right captions among them."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer = build_tokenizer()
        self.model: nn.Module = build_clip(recipe, self.tokenizer).to(device)
        self.network = compiled(Towers(self.model), recipe, device)
        self.held_out = describe(draw_scenes("val", recipe["held_out"]), recipe["tinted"], 0)
        whole = self.held_out.scenes
        less = without_one(whole, np.random.Generator(np.random.Philox(key=[92, 0])))
        self.pictures, self.less = (
            rendered(batch, recipe["size"], device).images for batch in (whole, less)
        )
        print(f"clip: {parameter_count(self.model) / 1e6:.2f} M parameters", file=sys.stderr)

    @cached_property
    def bank(self) -> tuple[Tensor, ...]:
        """Pictures uint8 [N, 3, s, s] and ids: plain, rich, wrong; drawn when first asked for."""
        recipe, columns = self.recipe, []
        first, count, batch = (recipe["bank"][name] for name in ("first", "count", "batch"))
        draw = partial(described_scenes, recipe["tinted"])
        for _, last, part in sampled_ahead(draw, first, count, batch, recipe["workers"]):
            images = rendered(part.scenes, recipe["size"], self.device).images
            texts = (text.to(self.device) for text in (part.plain, part.rich, part.wrong))
            columns.append(((images * 255).round().byte(), *texts))
            if last == count or len(columns) % 20 == 0:
                print(f"bank: {last}/{count} scenes", file=sys.stderr)
        return tuple(torch.cat(column) for column in zip(*columns, strict=True))

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Cross-entropy both ways; a picture's row also has its own wrong captions."""
        pictures, plain, rich, wrong = self.bank
        batch = self.recipe["batch"]
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        rows = torch.randint(len(pictures), (batch,), **draw)
        bare = torch.rand((batch, 1), **draw) < 0.4
        right = torch.where(bare, plain[rows], rich[rows]).long()
        others = wrong[rows].long()  # [B, kinds, L]
        texts = torch.cat([right, others.flatten(0, 1)])
        seen, read, scale = self.network(self._moved(pictures[rows], draw), texts)
        twins = (right[:, None] == right).all(-1).fill_diagonal_(False)
        logits = (scale * seen @ read[:batch].T).masked_fill(twins, -torch.inf)
        near = read[batch:].unflatten(0, (batch, -1))
        close = scale * (seen[:, None] * near).sum(-1)
        close = close.masked_fill((others == rich[rows].long()[:, None]).all(-1), -torch.inf)
        wanted = torch.arange(batch, device=logits.device)
        rowwise = torch.cat([logits, close], 1).float()
        losses = [functional.cross_entropy(x, wanted) for x in (rowwise, logits.T.float())]
        accuracy = (rowwise.argmax(1) == wanted).float().mean()
        return {"loss": torch.stack(losses).mean(), "accuracy": accuracy}

    def _moved(self, pictures: Tensor, draw: dict[str, Any]) -> Tensor:
        """In [-1, 1], each perhaps mirrored, all moved by the same few pixels."""
        flips = torch.rand(len(pictures), **draw) < 0.5
        pixels = torch.where(flips[:, None, None, None], pictures.flip(-1), pictures)
        reach = self.recipe["shift"]
        padded = functional.pad(pixels.float() / 127.5 - 1, (reach,) * 4, mode="replicate")
        top, left = torch.randint(2 * reach + 1, (2,), **draw).tolist()
        side = pictures.shape[-1]
        return padded[..., top : top + side, left : left + side]

    @torch.no_grad()
    def evaluate(self, model: Any, step: int, out: Path) -> dict[str, Any]:
        """How often the right caption, or the whole picture, has the higher score."""
        towers, known = Towers(model), self.held_out
        empty = torch.zeros(1, known.rich.shape[1], dtype=torch.long, device=self.device)

        def see(images: Tensor) -> Tensor:
            return in_parts(lambda part: towers(part * 2 - 1, empty)[0], images)

        def read(ids: Tensor) -> Tensor:
            blank = self.pictures[:1]
            return in_parts(lambda part: towers(blank, part)[1], ids.long().to(self.device), 512)

        seen, less, right = see(self.pictures), see(self.less), read(known.rich)
        score = (seen * right).sum(1)
        figures = {
            f"of_{CHOICES}": _choice(seen, right, known.rich),
            f"of_{CHOICES}_plain": _choice(seen, read(known.plain), known.plain),
            "missing_in_picture": float(((less * right).sum(1) < score).float().mean()),
        }
        for place, kind in enumerate(KINDS):
            ids = known.wrong[:, place]
            differs = (ids != known.rich).any(1).to(self.device)
            lower = (seen * read(ids)).sum(1) < score
            figures[kind] = float(lower[differs].float().mean())
        return figures

    def export(self, model: Any, out: Path) -> None:
        """Write the model in float16, the tokenizer and how pictures are prepared."""
        folder, side = out / "clip", self.recipe["size"]
        copy_as(model, torch.float16).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        CLIPImageProcessorPil(
            size={"shortest_edge": side},
            crop_size={"height": side, "width": side},
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        ).save_pretrained(folder)


def _choice(seen: Tensor, read: Tensor, ids: Tensor) -> float:
    """How often a picture prefers its caption to the CHOICES - 1 different ones after it."""
    right = 0
    texts = [tuple(row) for row in ids.tolist()]
    scores = (seen @ read.T).cpu()
    for index, text in enumerate(texts):
        later = [j % len(texts) for j in range(index + 1, index + len(texts))]
        others = [j for j in later if texts[j] != text][: CHOICES - 1]
        right += bool((scores[index, index] > scores[index, others]).all())
    return right / len(texts)


class Towers(nn.Module):
    """Both towers as one graph: unit vectors of pictures and texts, and the scale of logits."""

    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images [B, 3, s, s] in [-1, 1] and ids [P, L] to [B, D], [P, D] and a number."""
        clip = self.clip
        seen = clip.visual_projection(clip.vision_model(images).pooler_output)
        read = clip.text_projection(clip.text_model(ids).pooler_output)
        scale = clip.logit_scale.exp().clamp(max=100)
        return functional.normalize(seen, dim=-1), functional.normalize(read, dim=-1), scale


def build_clip(recipe: Recipe, tokenizer: Any) -> Any:
    """A CLIPModel for the lab's words and pictures."""
    size, patch, projection = recipe["size"], recipe["vision"]["patch"], recipe["projection"]
    seen = tower_settings(recipe["vision"], projection)
    config = CLIPConfig(
        text_config=tower_settings(recipe["text"], projection, tokenizer),
        vision_config=seen | {"image_size": size, "patch_size": patch},
        projection_dim=projection,
    )
    return CLIPModel(config)
