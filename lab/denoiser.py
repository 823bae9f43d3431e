"""The denoiser of any family: the error of what it estimates, in noised latents under captions.

It sees no mask, box or attention map: alignment must come from pictures and captions alone.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.attention import GateScenes, format_gates, measure_gates
from lab.data import Bank, kept_bank
from lab.evaluate import draw_samples, write_grid
from lab.families import DENOISER, FAMILIES, Family, restore
from lab.loop import Stage, compiled
from lab.networks import load_pipeline, load_vae, parameter_count, save_pipeline
from lab.recipe import Recipe
from lab.vocabulary import CaptionEncoder, build_tokenizer
from pixalign.backbones.load import wrap
from pixalign.backbones.locations import located
from pixalign.core.checks import check_choice
from pixalign.core.values import TextCondition
from pixalign.diffusion.objectives import OBJECTIVES
from pixalign.diffusion.sampling import guided
from pixalign.diffusion.schedule import Steps
from pixalign.scenes.atlas import class_names, training_shares

_TIMES = 1000  # points of the schedule at which training asks


class DenoiserStage(Stage):
    """Mean squared error of the family's objective."""

    def __init__(
        self,
        recipe: Recipe,
        device: str,
        family: Family,
        vae: Path,
        bank: dict[int, Bank] | None = None,
        folder: Path | None = None,
    ) -> None:
        """``bank`` keeps the encoded scenes, by their first index, for later runs of this process,
        and ``folder`` for those of others."""
        check_choice("timesteps", recipe["timesteps"], ("uniform", "logit-normal", "half"))
        self.recipe, self.device, self.family = recipe, device, family
        self.vae = load_vae(vae, device)
        self.tokenizer = build_tokenizer()
        self.encoder = CaptionEncoder(self.tokenizer)
        self.banks = {} if bank is None else bank
        self.folder = folder
        torch.manual_seed(recipe["seed"])
        self.parts = family.build(recipe, self.vae, self.tokenizer).to(device)
        self.model: nn.Module = self.parts
        denoiser: Any = self.parts[DENOISER]
        if device.startswith("cuda"):
            denoiser.to(memory_format=torch.channels_last)
        self.network = compiled(denoiser, recipe, device)
        self.backbone = wrap(self._pipeline(self.parts))
        steps = self.backbone.schedule.at_positions(torch.arange(_TIMES) / _TIMES)
        self.steps = Steps(*(values.float().to(device) for values in vars(steps).values()))
        self.target = OBJECTIVES[self.backbone.objective].target
        self.unguided: Any = None  # what a network that learns to answer with guidance began as
        self.teacher = _Teacher(recipe["teacher"], device) if recipe["teacher"] else None
        self.gate_scenes = GateScenes.draw(
            self.backbone, size=recipe["size"], device=device, **recipe["gates"]
        )
        sizes = ", ".join(
            f"{k} {parameter_count(m) / 1e6:.2f} M" for k, m in self.parts.named_children()
        )
        print(f"{family.name}: {sizes} parameters", file=sys.stderr)

    def bank(self, step: int) -> Bank:
        """The scenes of this step; a new bank begins every ``refresh`` steps."""
        settings = self.recipe["bank"]
        generation = step // settings["refresh"] if settings["refresh"] else 0
        start = settings["first"] + generation * settings["count"]
        if start not in self.banks:
            self.banks.clear()  # the old one's memory first
            options = {name: self.recipe[name] for name in ("size", "workers")}
            options |= {"start": start, "count": settings["count"], "batch": settings["batch"]}
            options["device"] = self.device
            self.banks[start] = kept_bank(self.folder, self.vae, self.encoder, **options)
        return self.banks[start]

    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The mean squared error on this step's draws from the bank."""
        bank, batch = self.bank(step), self.recipe["batch"]
        draw: dict[str, Any] = {"generator": generator, "device": self.device}
        rows = torch.randint(len(bank), (batch,), **draw)
        latents, ids = bank.latents[rows].float(), bank.ids[rows].long()
        noise = torch.randn(latents.shape, **draw)
        steps = self.steps[self._times(batch, draw)]
        text = self.family.encode(self.parts, ids)
        noised = steps.noised(latents, noise)
        output = self.backbone.forward(self.network, noised, steps.time, text)
        if self.recipe["guided"]:
            target = self._guided(noised, steps, text)
        elif self.teacher:
            target = self.teacher.answer(noised, steps, ids)
        else:
            target = self.target(latents, noise, steps)
        return {"loss": functional.mse_loss(output.float(), target)}

    @torch.no_grad()
    def _guided(self, noised: Tensor, steps: Steps, text: TextCondition) -> Tensor:
        """What the network with which training began answers with guidance.

        It leads away from the empty text, so under that its answer is its own.
        """
        if self.unguided is None:
            self.unguided = copy.deepcopy(self.parts[DENOISER]).eval().requires_grad_(False)
        nothing = self.family.encode(self.parts, self.encoder([""]).to(self.device))
        away, towards = (
            self.backbone.forward(self.unguided, noised, steps.time, shown).float()
            for shown in (nothing.repeated(len(noised)), text)
        )
        return guided(towards, away, self.recipe["guided"])

    def _times(self, batch: int, draw: dict[str, Any]) -> Tensor:
        """int64 [B] in 0..999."""
        recipe, uniform = self.recipe, torch.randint(_TIMES, (batch,), **draw)
        if recipe["timesteps"] == "uniform":
            return uniform
        normal = recipe["timestep_mean"] + recipe["timestep_std"] * torch.randn(batch, **draw)
        times: Tensor = (normal.sigmoid() * _TIMES).long().clamp(0, _TIMES - 1)
        if recipe["timesteps"] == "half":
            times[::2] = uniform[::2]
        return times

    @torch.no_grad()
    def evaluate(self, model: Any, step: int, out: Path) -> dict[str, Any]:
        """The alignment gates; sometimes also a sheet of samples."""
        pipe = self._pipeline(model)
        result = measure_gates(wrap(pipe), self.gate_scenes)
        print(format_gates(result), file=sys.stderr)
        if step % self.recipe["sheet_every"] == 0:
            self._sheet(pipe, out / f"samples-{step:06d}.png")
        return result

    def _sheet(self, pipe: Any, path: Path) -> None:
        """Sixteen single objects, frequent to rare, above sixteen pairs."""
        names = class_names()
        order = torch.as_tensor(training_shares()).argsort(descending=True).tolist()
        chosen = [names[order[i * (len(order) - 1) // 15]] for i in range(16)]
        pairs = [f"{a}, {b}" for a, b in zip(chosen, chosen[1:] + chosen[:1], strict=True)]
        prompts = [f"a photo of {words}" for words in chosen + pairs]
        images = draw_samples(pipe, prompts, seed=0, **self.recipe["sheet"])
        write_grid(images, path, columns=8)

    def _pipeline(self, parts: Any) -> Any:
        pipe = self.family.pipeline(parts, self.vae, self.tokenizer)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def adopt(self, model: Any, folder: Path) -> None:
        """Take all of a saved pipeline of this recipe, and of another what the family can use."""
        donor = load_pipeline(folder, self.device)
        try:
            if _shapes(self.parts[DENOISER]) == _shapes(wrap(donor).denoiser):
                restore(model, donor)
            else:
                self.family.inherit(model, donor)
        except ValueError as error:
            raise ValueError(f"{str(folder)!r} is no pipeline for this recipe: {error}") from error

    def export(self, model: Any, out: Path) -> None:
        """Write the pipeline and a last sheet of samples."""
        pipe = self._pipeline(model)
        self._sheet(pipe, out / "samples.png")
        save_pipeline(pipe, out / "pipeline")


class _Teacher:
    """Another of the lab's models, whose answers a network learns: they have no noise."""

    def __init__(self, model: str, device: str) -> None:
        self.backbone = wrap(load_pipeline(Path(located(model)), device))
        self.family = FAMILIES[self.backbone.family]
        pipe = self.backbone.pipe
        texts = {name: getattr(pipe, name, None) for name in ("text_encoder", "text_encoder_2")}
        parts = {name: part for name, part in texts.items() if part is not None}
        self.parts = nn.ModuleDict({**parts, DENOISER: self.backbone.denoiser})
        self.parts.eval().requires_grad_(False)

    @torch.no_grad()
    def answer(self, noised: Tensor, steps: Steps, ids: Tensor) -> Tensor:
        """Its estimate for noised latents [B, C, h, w] under captions of ids [B, L]."""
        text = self.family.encode(self.parts, ids)
        return self.backbone.forward(self.parts[DENOISER], noised, steps.time, text).float()


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in network.state_dict().items()}
