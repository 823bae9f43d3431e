"""From a picture back to the noise that it could have come from.

The way up the path is conditional only. Down again, with guidance, it does not lead back; so
null-text optimisation (Mokady et al., 2023) finds for every step an embedding of "nothing" with
which it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.backbones.gradients import gradients_to_inputs
from pixalign.core.batching import BatchSize
from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.diffusion.sampling import Sampler, guided

INVERSIONS = ("null-text", "ddim")


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
        check_choice("inversion", self.method, INVERSIONS)
        for name, least in {"inner_steps": 1, "rate": 0, "tolerance": 0, "growth": 0}.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: {least} or more")

    def at(self, index: int) -> tuple[float, float]:
        """Adam's rate at a step, and the loss below which a picture is done."""
        share = index * 50 / self.steps
        return self.rate * (1 - share / 100), self.tolerance + share * self.growth


@dataclass(frozen=True, eq=False)
class Inversion:
    """The way to a picture: its noise and, for every step, what guidance leads away from.

    ``noise`` float32 [1, C, h, w]; ``unconditional`` float32 [T, L, D], or None for the model's
    own.
    """

    noise: Tensor
    unconditional: Tensor | None


def invert_pictures(
    model: AlignmentModel, pixels: Tensor, prompts: Sequence[str], settings: InversionSettings
) -> list[Inversion]:
    """Invert pictures float32 [B, 3, H, W] in [-1, 1] with a prompt each, all together."""
    backbone: Backbone = model.backbone
    latents = torch.cat([backbone.encode_image(picture[None]) for picture in pixels])
    how = (settings.steps, settings.guidance, model.batch_size)
    sampler = Sampler(backbone, prompts, *how, (latents.shape[-2], latents.shape[-1]))
    passes = len(pixels) * settings.steps
    with Progress(passes, "invert", model.progress, "step") as bar:
        trajectory = ddim_trajectory(sampler, latents, bar)
    embeds: Sequence[Tensor | None] = [None] * len(prompts)
    if settings.method == "null-text" and sampler.guidance != 1:  # else nothing leads away
        with Progress(passes, "null-text", model.progress, "step") as bar:
            embeds = null_text(sampler, trajectory, settings, bar).cpu().unbind(1)
    ways = zip(trajectory[0].cpu(), embeds, strict=True)
    return [Inversion(noise[None], own) for noise, own in ways]


def ddim_trajectory(sampler: Sampler, latents: Tensor, bar: Progress | None = None) -> Tensor:
    """Up the path from pictures' latents [B, C, h, w] under their texts, without guidance.

    The trajectory float32 [T + 1, B, C, h, w]: [i] is where step i begins, [T] the pictures.
    """
    trajectory: list[Tensor] = []

    def output(index: int, z: Tensor) -> Tensor:
        trajectory.append(z)
        return sampler.output(index, z, sampler.texts)

    trajectory.append(sampler.run(latents, output, backwards=True, bar=bar))
    return torch.stack(trajectory[::-1])


def null_text(
    sampler: Sampler, trajectory: Tensor, settings: InversionSettings, bar: Progress | None = None
) -> Tensor:
    """Embeddings float32 [T, B, L, D] of "nothing" with which guided steps stay on a trajectory.

    Each step begins with the embeddings of the one before and a fresh Adam, and where the guided
    steps so far have led. Pictures are independent of each other, however many go together.
    """
    backbone = cast(Backbone, sampler.network)
    fitted = [sampler.nothing(trajectory.shape[1]).embeds.float()]

    def output(index: int, z: Tensor) -> Tensor:
        towards, wanted = sampler.output(index, z, sampler.texts), trajectory[index + 1]
        embeds = fitted[-1].clone()

        def work(first: int, last: int) -> None:
            parts = (part[first:last] for part in (z, towards, wanted, fitted[-1]))
            embeds[first:last] = _optimised(sampler, settings, index, *parts)

        (sampler.batch_size or BatchSize()).each(z, len(z), "null-text", work)
        fitted.append(embeds)
        away = sampler.output(index, z, sampler.nothing(len(z), embeds))
        return guided(towards, away, sampler.guidance)

    # A GPU's memory is small; a CPU's is large, and it is the slower one.
    checkpointing = backbone.device.type != "cpu"
    with gradients_to_inputs(backbone.denoiser, checkpointing=checkpointing):
        sampler.run(trajectory[0], output, bar=bar)
    return torch.stack(fitted[1:])


def _optimised(
    sampler: Sampler,
    settings: InversionSettings,
    index: int,
    z: Tensor,
    towards: Tensor,
    wanted: Tensor,
    embeds: Tensor,
) -> Tensor:
    """Adam on each picture's embeddings until its loss is small or the steps are used up.

    A parameter a picture: one that is done has no gradient, so that Adam leaves it alone.
    """
    backbone, (rate, bound) = cast(Backbone, sampler.network), settings.at(index)
    free = [picture.clone().requires_grad_() for picture in embeds]
    optimizer = torch.optim.Adam(free, lr=rate)
    going = list(range(len(free)))
    for _ in range(settings.inner_steps):
        nothing = sampler.nothing(len(going), torch.stack([free[row] for row in going]))
        away = backbone.output(z[going], sampler.path.at(index, len(going)), nothing)
        moved = guided(towards[going], away, sampler.guidance)
        there = sampler.path.advance(backbone.objective, moved, z[going], index)
        squares = (there - wanted[going]).square().flatten(1)
        # The sum, not the mean: half precision would lose the mean's small gradients.
        gradients = torch.autograd.grad(squares.sum(), [free[row] for row in going])
        optimizer.zero_grad()
        for row, gradient in zip(going, gradients, strict=True):
            free[row].grad = gradient / squares.shape[1]
        optimizer.step()
        losses = squares.detach().mean(1).tolist()
        going = [row for row, loss in zip(going, losses, strict=True) if loss >= bound]
        if not going:
            break
    return torch.stack(free).detach()


def reconstruct(
    model: AlignmentModel,
    inversions: Sequence[Inversion],
    prompts: Sequence[str],
    settings: InversionSettings,
) -> Tensor:
    """The pictures float32 [B, 3, H, W] in [0, 1] to which inversions with these settings lead."""
    backbone: Backbone = model.backbone
    noise = torch.cat([inversion.noise for inversion in inversions]).to(backbone.device)
    how = (settings.steps, settings.guidance, model.batch_size)
    sampler = Sampler(backbone, prompts, *how, (noise.shape[-2], noise.shape[-1]))
    fitted = [own.unconditional for own in inversions if own.unconditional is not None]
    if fitted:
        sampler.unconditional = torch.stack(fitted, 1).__getitem__
    return backbone.decode_latents(sampler.run(noise))


def psnr(pictures: Tensor, others: Tensor) -> Tensor:
    """float64 [B] in dB: how close pictures [B, 3, H, W] in [0, 1] are to others."""
    errors = (pictures.double() - others.double()).square().flatten(1).mean(1)
    return -10 * errors.log10()


def reconstruction_figures(
    backbone: Backbone, pixels: Tensor, made: Tensor
) -> list[dict[str, float]]:
    """Of reconstructions [B, 3, H, W] in [0, 1] and pictures in [-1, 1], what `Edit` tells."""
    latents = torch.cat([backbone.encode_image(picture[None]) for picture in pixels])
    pictures, vae = pixels.to(made) / 2 + 0.5, backbone.decode_latents(latents)
    values = {"psnr": psnr(made, pictures), "psnr_vae": psnr(made, vae), "vae": psnr(vae, pictures)}
    return [{name: float(each[row]) for name, each in values.items()} for row in range(len(made))]
