"""The VAE and the classifier: what each trains on, by which loss, and how it is judged."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.classifier import (
    SceneClassifier,
    blurred,
    cell_losses,
    cell_targets,
    found_class,
    look,
    save_classifier,
    scene_figures,
)
from lab.data import SceneTensors, Stream, decode, encode, in_parts, rendered, scenes
from lab.evaluate import accuracies, write_grid
from lab.loop import Stage, compiled
from lab.networks import build_vae, copy_as, latent_side, load_vae, parameter_count
from lab.recipe import Recipe
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.sample import COLOURS, sample_scenes

FIRST = 1_000_000  # number of the classifier's first training scene
_RENDERED = 1024  # scenes drawn at once


class Reconstruction(nn.Module):
    """A VAE's way there and back as one graph."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels [B, 3, s, s] in [-1, 1]: their reconstruction, the latents' mean and variance."""
        mean, log_variance = self.vae.quant_conv(self.vae.encoder(pixels)).chunk(2, dim=1)
        variance = log_variance.float().clamp(-30, 20).exp()
        latents = mean + variance.sqrt() * noise
        return self.vae.decoder(self.vae.post_quant_conv(latents)), mean, variance


class VaeStage(Stage):
    """L1 + MSE + edges + a little KL on scenes drawn on the fly."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.model: Any = build_vae({**recipe["vae"], "size": recipe["size"]}).to(device)
        if device.startswith("cuda"):
            self.model.to(memory_format=torch.channels_last)
        self.network = compiled(Reconstruction(self.model), recipe, device)
        size = recipe["size"]
        self.stream = Stream("train", recipe["batch"], size, device, workers=recipe["workers"])
        self.held_out = scenes("val", 0, recipe["held_out"], size, device)
        print(f"vae: {parameter_count(self.model) / 1e6:.2f} M parameters", file=sys.stderr)

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Weighted parts and their sum on this step's scenes."""
        recipe = self.recipe
        pixels = self._crop(self.stream[step].images * 2 - 1, generator)
        side = latent_side(self.model, pixels.shape[-1])
        shape = (len(pixels), recipe["vae"]["latent_channels"], side, side)
        noise = torch.randn(shape, generator=generator, device=self.device)
        output, mean, variance = self.network(pixels, noise)
        error, mean = output.float() - pixels, mean.float()
        parts = {
            "l1": error.abs().mean(),
            "mse": error.square().mean(),
            "edges": error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean(),
            "kl": 0.5 * (mean.square() + variance - 1 - variance.log()).mean(),
        }
        total = torch.stack([recipe[name] * part for name, part in parts.items()]).sum()
        return {"loss": total, **parts}

    def _crop(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        side = self.recipe["crop"]
        if side is None or side >= pixels.shape[-1]:
            return pixels
        places = pixels.shape[-1] - side + 1
        top, left = torch.randint(places, (2,), generator=generator, device=self.device).tolist()
        return pixels[..., top : top + side, left : left + side]

    @torch.no_grad()
    def evaluate(self, model: Any, step: int, out: Path) -> dict[str, Any]:
        """PSNR on held-out scenes, in dB, and the spread of the latents."""
        images = self.held_out.images
        latents = in_parts(lambda part: encode(model, part), images)
        again = in_parts(lambda part: decode(model, part), latents)
        psnr = -10 * (again - images).square().mean((1, 2, 3)).log10()  # [B], dB
        rows = torch.stack([images[:16], again[:16]], dim=1).flatten(0, 1)
        write_grid(rows, out / "sheet.png", columns=8)
        return {
            "psnr": float(psnr.mean()),
            "psnr_worst_tenth": float(psnr.quantile(0.1)),
            "latent_std": float(latents.std()) / model.config.scaling_factor,
        }

    def adopt(self, model: Any, folder: Path) -> None:
        """Take the pipeline's VAE."""
        model.load_state_dict(load_vae(folder, self.device).state_dict())

    def export(self, model: Any, out: Path) -> None:
        """A VAE in float16 whose scaled latents have unit variance over held-out scenes."""
        raw = in_parts(lambda part: encode(model, part), self.held_out.images)
        half = copy_as(model, torch.float16)
        scale = model.config.scaling_factor / float(raw.std())
        half.register_to_config(scaling_factor=round(scale, 5))
        half.save_pretrained(out / "vae")
        print(f"vae written, scaling factor {half.config.scaling_factor}", file=sys.stderr)

    def close(self) -> None:
        """Stop sampling ahead."""
        self.stream.close()


class ClassifierStage(Stage):
    """Cross-entropy of what stands in each cell, and in which colour."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.config = {**recipe["classifier"], "classes": len(class_names())}
        self.model: nn.Module = SceneClassifier(**self.config).to(device)
        self.network = compiled(self.model, recipe, device)
        size, count = recipe["size"], recipe["held_out"]
        self.bank = training_scenes(recipe["bank"], size, device, recipe["tinted"])
        self.single = scenes("val", 0, count, size, device, objects=1)
        self.several = rendered(draw_scenes("val", count), size, device)
        rare = recipe["tinted"] / (len(COLOURS) - 1)
        shares = [1 - recipe["tinted"], *[rare] * (len(COLOURS) - 1)]  # of the colours
        self.weights = torch.tensor(shares, device=device) ** -recipe["balance"]
        print(f"classifier: {parameter_count(self.model) / 1e6:.2f} M parameters", file=sys.stderr)

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Losses of classes and colours on this step's scenes, and how many cells are right."""
        bank, count = self.bank, self.recipe["batch"]
        rows = torch.randint(len(bank.images), (count,), generator=generator, device=self.device)
        shares, colours = cell_targets(bank.slots[rows], bank.labels[rows], bank.tints[rows])
        images = bank.images[rows].float() / 255
        logits = self.network(self._spoilt(images, generator))
        classes, tints = cell_losses(logits, (shares, colours), self.weights)
        right = logits[0].argmax(1) == shares.argmax(1)
        loss = classes + self.recipe["colour"] * tints
        return {"loss": loss, "classes": classes, "colours": tints, "cells": right.float().mean()}

    def _spoilt(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Some of them blurred, all with noise of their own strength."""
        recipe = self.recipe
        images = blurred(images, recipe["blurred"], recipe["blur"], generator.initial_seed())
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        strength = recipe["noise"] * torch.rand((len(images), 1, 1, 1), **draw)
        noise: Tensor = strength * torch.randn(images.shape, **draw)
        return images + noise

    @torch.no_grad()
    def evaluate(self, model: nn.Module, step: int, out: Path) -> dict[str, Any]:
        """Accuracies on held-out scenes of one object; recall, precision, colours on others."""
        found = found_class(look(model, self.single.images)[0])
        figures = accuracies(found.cpu(), self.single.labels[:, 0].cpu())
        return {**figures, **scene_figures(*look(model, self.several.images), self.several)}

    def export(self, model: nn.Module, out: Path) -> None:
        """Write the classifier and what it was built from."""
        save_classifier(model, self.config, out)


def training_scenes(count: int, size: int, device: str, tinted: float) -> SceneTensors:
    """Scenes in which all classes are equally frequent and ``tinted`` of the objects are coloured.

    They are val's from FIRST on, far from those that anything is chosen or reported on. Images are
    uint8, to hold many.
    """
    parts = []
    for start in range(0, count, _RENDERED):
        batch = sample_scenes("val", FIRST + start, min(_RENDERED, count - start))
        rng = np.random.default_rng(FIRST + start)
        colours = rng.integers(1, len(COLOURS), batch.tints.shape)
        tints = np.where(rng.random(batch.tints.shape) < tinted, colours, 0)
        painted = rendered(replace(batch, tints=tints), size, device)
        images = (painted.images * 255).round().byte()
        parts.append({**vars(painted), "images": images, "masks": painted.masks[:0]})
    names = [name for name in parts[0] if name != "captions"]
    return SceneTensors(**{n: torch.cat([part[n] for part in parts]) for n in names}, captions=())
