"""The three stages: what each trains, on what, by which loss, and how it is judged.

No stage sees a mask, a box or an attention map; the denoiser learns from images and captions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pixalign.lab import evaluate as judge
from pixalign.lab.data import Bank, Stream, build_bank, decode, encode, in_parts, scenes
from pixalign.lab.gates import GateScenes, gates, table
from pixalign.lab.models import (
    Classifier,
    alphas_cumprod,
    build_pipeline,
    build_text_encoder,
    build_unet,
    build_vae,
    half_copy,
    load_pipeline,
    load_vae,
    parameter_count,
    save_classifier,
    save_pipeline,
)
from pixalign.lab.recipes import Recipe
from pixalign.lab.sheets import write_sheet
from pixalign.lab.vocabulary import CaptionEncoder, build_tokenizer
from pixalign.scenes.atlas import class_names, training_shares
from pixalign.types import allowed


def compiled(module: nn.Module, recipe: Recipe, device: str) -> Any:
    """The module, compiled where that pays; its weights stay shared."""
    if not (recipe["compile"] and device.startswith("cuda")):
        return module
    return torch.compile(module, mode=recipe["compile_mode"])


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


class DenoiserStage:
    """Mean squared error of the noise in latents under their captions."""

    def __init__(
        self, recipe: Recipe, device: str, vae: Path, bank: dict[int, Bank] | None = None
    ) -> None:
        """``bank`` keeps the encoded scenes, by their first index, for runs that share them."""
        allowed("timesteps", recipe["timesteps"], ("uniform", "logit-normal", "half"))
        self.recipe, self.device = recipe, device
        self.vae = load_vae(vae, device)
        self.tokenizer = build_tokenizer()
        self.encoder = CaptionEncoder(self.tokenizer)
        self.banks = {} if bank is None else bank
        side = recipe["size"] // 2 ** (len(self.vae.config.block_out_channels) - 1)
        torch.manual_seed(recipe["seed"])
        text = build_text_encoder(recipe["text"], self.tokenizer)
        with torch.no_grad():
            text.get_parameter(_position_name(text)).mul_(recipe["text"]["position_gain"])
        self.text = text.requires_grad_(not recipe["text"]["frozen"])
        channels = self.vae.config.latent_channels
        unet = build_unet(recipe["unet"], side, channels, recipe["text"]["hidden"])
        self.model: nn.Module = nn.ModuleDict({"text": text, "unet": unet}).to(device)
        if device.startswith("cuda"):
            unet.to(memory_format=torch.channels_last)
        self.network = compiled(unet, recipe, device)
        signal = alphas_cumprod().to(device)
        self.alpha, self.sigma = signal.sqrt(), (1 - signal).sqrt()  # [1000]
        self.gate_scenes = GateScenes.draw(
            self.vae, self.tokenizer, size=recipe["size"], device=device, **recipe["gates"]
        )
        sizes = ", ".join(
            f"{k} {parameter_count(m) / 1e6:.2f} M" for k, m in self.model.named_children()
        )
        print(f"denoiser: {sizes} parameters", flush=True)

    def bank(self, step: int) -> Bank:
        """The scenes of this step; a new bank begins every ``refresh`` steps."""
        settings = self.recipe["bank"]
        generation = step // settings["refresh"] if settings["refresh"] else 0
        start = settings["first"] + generation * settings["count"]
        if start not in self.banks:
            self.banks.clear()  # the old one's memory first
            self.banks[start] = build_bank(
                self.vae,
                self.encoder,
                start=start,
                count=settings["count"],
                size=self.recipe["size"],
                device=self.device,
                batch=settings["batch"],
                workers=self.recipe["workers"],
            )
        return self.banks[start]

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The mean squared error of the noise on this step's draws from the bank."""
        bank, batch = self.bank(step), self.recipe["batch"]
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        rows = torch.randint(len(bank), (batch,), **draw)
        latents, ids = bank.latents[rows].float(), bank.ids[rows].long()
        noise = torch.randn(latents.shape, **draw)
        times = self._times(batch, draw)
        shaped = times.reshape(-1, 1, 1, 1)
        noised = self.alpha[shaped] * latents + self.sigma[shaped] * noise
        text = self.text(ids)[0]
        output = self.network(noised, times, text, return_dict=False)[0]
        return {"loss": functional.mse_loss(output.float(), noise)}

    def _times(self, batch: int, draw: dict[str, Any]) -> Tensor:
        """int64 [B] in 0..999."""
        count = len(self.alpha)
        uniform = torch.randint(count, (batch,), **draw)
        if self.recipe["timesteps"] == "uniform":
            return uniform
        normal = torch.randn(batch, **draw)
        unit: Tensor = (
            self.recipe["timestep_mean"] + self.recipe["timestep_std"] * normal
        ).sigmoid()
        times = (unit * count).long().clamp(0, count - 1)
        if self.recipe["timesteps"] == "half":
            times[::2] = uniform[::2]
        return times

    @torch.no_grad()
    def evaluate(self, model: Any, step: int, out: Path) -> dict[str, Any]:
        """The alignment gates; sometimes also a sheet of samples."""
        result = gates(model["unet"], model["text"], self.gate_scenes)
        print(table(result), flush=True)
        if step % self.recipe["sheet_every"] == 0:
            self._sheet(model, out / f"samples-{step:06d}.png")
        return result

    def _sheet(self, model: Any, path: Path) -> None:
        """Sixteen single objects, frequent to rare, above sixteen pairs."""
        names = class_names()
        order = torch.as_tensor(training_shares()).argsort(descending=True).tolist()
        chosen = [names[order[i * (len(order) - 1) // 15]] for i in range(16)]
        pairs = [f"{a}, {b}" for a, b in zip(chosen, chosen[1:] + chosen[:1], strict=True)]
        prompts = [f"a photo of {words}" for words in chosen + pairs]
        images = judge.generate(self._pipeline(model), prompts, seed=0, **self.recipe["sheet"])
        write_sheet(images, path, columns=8)

    def _pipeline(self, model: Any) -> Any:
        return build_pipeline(self.vae, model["text"], self.tokenizer, model["unet"])

    def adopt(self, model: Any, folder: Path) -> None:
        """Take the pipeline's UNet and text encoder, which must have this recipe's shapes."""
        pipe = load_pipeline(folder, self.device)
        try:
            model["unet"].load_state_dict(pipe.unet.state_dict())
            model["text"].load_state_dict(pipe.text_encoder.state_dict())
        except RuntimeError as error:
            what = str(error).splitlines()[0]
            raise ValueError(f"{str(folder)!r} is no pipeline of this recipe: {what}") from error

    def export(self, model: Any, out: Path) -> None:
        """Write the pipeline and a last sheet of samples."""
        self._sheet(model, out / "samples.png")
        save_pipeline(self._pipeline(model), out / "pipeline")

    def close(self) -> None:
        """Nothing works in the background."""


def _position_name(text: Any) -> str:
    """transformers renamed the outer module between versions."""
    names = [str(name) for name, _ in text.named_parameters()]
    return next(name for name in names if name.endswith("position_embedding.weight"))
