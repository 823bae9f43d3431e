"""From a picture back to the noise that it could have come from.

The way up the path is conditional only. Down again, with guidance, it does not lead back; so
null-text optimisation (Mokady et al., 2023) finds for every step an embedding of "nothing" with
which it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.backbones.gradients import gradients_to_inputs
from pixalign.core.batching import BatchSize
from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress
from pixalign.core.values import TextCondition
from pixalign.diffusion.sampling import guided, outputs
from pixalign.diffusion.schedule import SamplingPath
from pixalign.editing.walking import invert, quiet, repeated, sample

METHODS = ("null-text", "ddim")
# Adam's published constants.
_FADING, _FADING_SQUARES, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class InversionSettings:
    """How pictures are inverted. The last four are null-text optimisation's.

    At step i of 50 (of other numbers, the like share of the way) Adam learns with
    ``rate`` (1 - i / 100) until a picture's loss is below ``tolerance`` + i ``growth``.
    """

    method: str = "null-text"
    steps: int = 50
    guidance: float = 7.5
    inner_steps: int = 10
    rate: float = 1e-2
    tolerance: float = 1e-5
    growth: float = 2e-5

    def __post_init__(self) -> None:
        check_choice("inversion", self.method, METHODS)
        if self.inner_steps < 1:
            raise ValueError(f"inner_steps is {self.inner_steps}; allowed: 1 or more")
        for name in ("rate", "tolerance", "growth"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 or more")

    def at(self, index: int) -> tuple[float, float]:
        """Adam's rate at a step, and the loss below which a picture is done."""
        place = index * 50 / self.steps
        return self.rate * (1 - place / 100), self.tolerance + place * self.growth

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class Inversion:
    """The way to a picture: its noise and, for every step, what guidance leads away from.

    ``noise`` float32 [1, C, h, w]; ``unconditional`` float32 [T, L, D], or None for the model's
    own. ``figures`` are the reconstruction's distances, PSNR in dB: "psnr" from the picture,
    "psnr_vae" from what the VAE alone makes of it, and "vae" of that from the picture.
    """

    prompt: str
    settings: InversionSettings
    noise: Tensor
    unconditional: Tensor | None
    figures: Mapping[str, float]

    def reconstruct(self, backbone: Backbone) -> Tensor:
        """The picture, float32 [1, 3, H, W] in [0, 1], that the way leads to."""
        own = None if self.unconditional is None else self.unconditional[:, None]
        texts = backbone.encode_text([self.prompt])
        path = backbone.schedule.path(self.settings.steps)
        noise = self.noise.to(backbone.device)
        latents = sample(backbone, noise, texts, path, self.settings.guidance, own)
        return backbone.decode_latents(latents)


def null_text(
    backbone: Backbone,
    trajectory: Tensor,
    texts: TextCondition,
    path: SamplingPath,
    settings: InversionSettings,
    batch_size: BatchSize | None = None,
    bar: Progress | None = None,
) -> Tensor:
    """Embeddings float32 [T, B, L, D] of "nothing" with which guided steps stay on a trajectory.

    Each step begins with the embeddings of the one before and a fresh Adam, and where the guided
    steps so far have led. Pictures are independent of each other, however many go together.
    """
    limits, bar = batch_size or BatchSize(), bar or quiet()
    z, count = trajectory[0], trajectory.shape[1]
    empty = backbone.unconditional()
    embeds = repeated(empty, count).embeds.float()
    found = []
    # A GPU's memory is small; a CPU's is large, and it is the slower one.
    checkpointing = backbone.device.type != "cpu"
    with gradients_to_inputs(backbone.denoiser, checkpointing=checkpointing):
        for index in range(len(path)):
            steps = path.at(index, count)
            towards = outputs(backbone, z, steps, texts, limits)
            wanted = trajectory[index + 1]
            step = _Step(backbone, empty, path, index, settings, z, towards, wanted)
            embeds = step.fitted(embeds, limits)
            found.append(embeds)
            away = outputs(backbone, z, steps, repeated(empty, count, embeds), limits)
            moved = guided(towards, away, settings.guidance)
            z = path.advance(backbone.objective, moved, z, index)
            bar.advance(count)
    return torch.stack(found)


@dataclass(frozen=True, eq=False)
class _Step:
    """One step of B pictures: from ``z``, with the conditional output, to where they should be."""

    backbone: Backbone
    empty: TextCondition
    path: SamplingPath
    index: int
    settings: InversionSettings
    z: Tensor
    towards: Tensor
    wanted: Tensor

    def fitted(self, embeds: Tensor, batch_size: BatchSize) -> Tensor:
        """Embeddings [B, L, D] that lead there better, in as few batches as memory allows."""
        found = embeds.clone()
        done = 0

        def work(size: int) -> None:
            nonlocal done
            while done < len(embeds):
                rows = torch.arange(done, min(done + size, len(embeds)), device=embeds.device)
                found[rows] = self._optimised(embeds[rows], rows)
                done += len(rows)

        batch_size.attempt(self.z, len(embeds), "null-text", work)
        return found

    def _optimised(self, embeds: Tensor, rows: Tensor) -> Tensor:
        """Adam on each picture's embeddings until its loss is small or the steps are used up."""
        rate, bound = self.settings.at(self.index)
        best = embeds.clone()
        mean, squares = torch.zeros_like(best), torch.zeros_like(best)
        going = torch.arange(len(best), device=best.device)
        for count in range(1, self.settings.inner_steps + 1):
            losses, gradient = self._losses(best[going], rows[going])
            mean[going] = _FADING * mean[going] + (1 - _FADING) * gradient
            squares[going] = (
                _FADING_SQUARES * squares[going] + (1 - _FADING_SQUARES) * gradient.square()
            )
            size = (squares[going] / (1 - _FADING_SQUARES**count)).sqrt() + _EPSILON
            best[going] -= rate * mean[going] / (1 - _FADING**count) / size
            going = going[losses >= bound]
            if not len(going):
                break
        return best

    def _losses(self, embeds: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean squared distances [b] from where the rows should be, and gradients [b, L, D]."""
        z = self.z[rows]
        with torch.enable_grad():
            free = embeds.detach().requires_grad_()
            text = repeated(self.empty, len(rows), free)
            away = self.backbone.output(z, self.path.at(self.index, len(rows)), text)
            moved = guided(self.towards[rows], away, self.settings.guidance)
            there = self.path.advance(self.backbone.objective, moved, z, self.index)
            squares = (there - self.wanted[rows]).square().flatten(1)
            # The sum, not the mean: half precision would lose the mean's small gradients.
            (gradient,) = torch.autograd.grad(squares.sum(), free)
        return squares.detach().mean(1), gradient / squares.shape[1]


def psnr(pictures: Tensor, others: Tensor) -> Tensor:
    """float64 [B] in dB: how close pictures [B, 3, H, W] in [0, 1] are to others."""
    errors = (pictures.double() - others.double()).square().flatten(1).mean(1)
    return -10 * errors.log10()


def invert_pictures(
    backbone: Backbone,
    pixels: Tensor,
    prompts: Sequence[str],
    settings: InversionSettings,
    batch_size: BatchSize | None = None,
    progress: bool = False,
) -> list[Inversion]:
    """Invert pictures float32 [B, 3, H, W] in [-1, 1] with a prompt each, all together."""
    limits = batch_size or BatchSize()
    path = backbone.schedule.path(settings.steps)
    texts = backbone.encode_text(list(prompts))
    latents = torch.cat([backbone.encode_image(one[None]) for one in pixels])
    passes = len(pixels) * settings.steps
    with Progress(passes, "invert", progress, "step") as bar:
        trajectory = invert(backbone, latents, texts, path, limits, bar)
    found = None
    if settings.method == "null-text":
        with Progress(passes, "null-text", progress, "step") as bar:
            found = null_text(backbone, trajectory, texts, path, settings, limits, bar)
    again = sample(backbone, trajectory[0], texts, path, settings.guidance, found, limits)
    known = distances(backbone, pixels, latents, backbone.decode_latents(again))
    return [
        Inversion(
            prompt=prompt,
            settings=settings,
            noise=trajectory[0, row, None].cpu(),
            unconditional=None if found is None else found[:, row].cpu(),
            figures=figures,
        )
        for row, (prompt, figures) in enumerate(zip(prompts, known, strict=True))
    ]


def distances(
    backbone: Backbone, pixels: Tensor, latents: Tensor, made: Tensor
) -> list[dict[str, float]]:
    """The figures of reconstructions [B, 3, H, W] in [0, 1] of pictures in [-1, 1]."""
    pictures, vae = pixels.to(made) / 2 + 0.5, backbone.decode_latents(latents)
    found = {"psnr": psnr(made, pictures), "psnr_vae": psnr(made, vae), "vae": psnr(vae, pictures)}
    return [
        {name: float(values[row]) for name, values in found.items()} for row in range(len(made))
    ]
