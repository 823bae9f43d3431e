"""The VAE and the classifier: what each trains on, by which loss, and how it is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pixalign.lab import evaluate as judge
from pixalign.lab.data import Stream, decode, encode, in_parts, scenes
from pixalign.lab.loop import compiled
from pixalign.lab.models import (
    Classifier,
    build_vae,
    half_copy,
    load_vae,
    parameter_count,
    save_classifier,
)
from pixalign.lab.recipes import Recipe
from pixalign.lab.sheets import write_sheet
from pixalign.scenes.atlas import class_names, training_shares


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


class VaeStage:
    """L1 + MSE + edges + a little KL on scenes drawn on the fly."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.model: Any = build_vae({**recipe["vae"], "size": recipe["size"]}).to(device)
        if device.startswith("cuda"):
            self.model.to(memory_format=torch.channels_last)
        self.network = compiled(Reconstruction(self.model), recipe, device)
        self.stream = Stream(
            "train", recipe["batch"], recipe["size"], device, workers=recipe["workers"]
        )
        self.held_out = scenes("val", 0, recipe["held_out"], recipe["size"], device)
        print(f"vae: {parameter_count(self.model) / 1e6:.2f} M parameters", flush=True)

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Weighted parts and their sum on this step's scenes."""
        recipe = self.recipe
        pixels = self._crop(self.stream[step].images * 2 - 1, generator)
        factor = 2 ** (len(recipe["vae"]["channels"]) - 1)
        batch, side = len(pixels), pixels.shape[-1] // factor
        noise = torch.randn(
            (batch, recipe["vae"]["latent_channels"], side, side),
            generator=generator,
            device=self.device,
        )
        output, mean, variance = self.network(pixels, noise)
        error = output.float() - pixels
        mean = mean.float()
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
        write_sheet(rows, out / "sheet.png", columns=8)
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
        half = half_copy(model)
        half.register_to_config(
            scaling_factor=round(model.config.scaling_factor / float(raw.std()), 5)
        )
        half.save_pretrained(out / "vae")
        print(f"vae written, scaling factor {half.config.scaling_factor}", flush=True)

    def close(self) -> None:
        """Stop sampling ahead."""
        self.stream.close()


class ClassifierStage:
    """Cross-entropy on scenes of one object."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.config = {**recipe["classifier"], "classes": len(class_names())}
        self.model: nn.Module = Classifier(**self.config).to(device)
        self.network = compiled(self.model, recipe, device)
        size, batch = recipe["size"], recipe["batch"]
        self.stream = Stream("train", batch, size, device, 1, recipe["workers"])
        self.held_out = scenes("val", 0, recipe["held_out"], size, device, objects=1)
        shares = torch.as_tensor(training_shares()).float()
        self.weights = (shares ** -recipe["balance"]).to(device)
        print(f"classifier: {parameter_count(self.model) / 1e6:.2f} M parameters", flush=True)

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Cross-entropy and accuracy on this step's scenes."""
        batch = self.stream[step]
        images, labels = batch.images, batch.labels[:, 0]
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        strength = torch.rand((len(images), 1, 1, 1), **draw) * self.recipe["noise"]
        images = images + strength * torch.randn(images.shape, **draw)
        logits = self.network(images).float()
        loss = functional.cross_entropy(logits, labels, weight=self.weights)
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean()}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, step: int, out: Path) -> dict[str, Any]:
        """Accuracies on held-out scenes of one object."""
        labels = self.held_out.labels[:, 0]
        found = in_parts(lambda part: model(part).argmax(1), self.held_out.images)
        return judge.accuracies(found.cpu(), labels.cpu())

    def adopt(self, model: nn.Module, folder: Path) -> None:
        """A pipeline has no classifier."""
        raise ValueError(f"{str(folder)!r} is a pipeline; a classifier continues from its own run")

    def export(self, model: nn.Module, out: Path) -> None:
        """Write the classifier and what it was built from."""
        save_classifier(model, self.config, out)

    def close(self) -> None:
        """Stop sampling ahead."""
        self.stream.close()
