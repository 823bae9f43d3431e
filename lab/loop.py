"""The training loop every stage shares: schedule, EMA, checkpoints, log."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.training_utils import EMAModel
from torch import Tensor, nn

from lab.data import write_state
from lab.recipe import Recipe
from pixalign.core.checks import check_choice

Watch = Callable[[int, dict[str, Any]], None]  # told the step and its figures


# What a run that continues exactly must not change.
_FIXED = ("seed", "size", "batch", "lr", "decay", "ema")


class Stage(ABC):
    """What a stage gives the loop: a network, its losses, its figures and its files."""

    model: nn.Module

    @abstractmethod
    def losses(self, step: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Scalars of one batch, "loss" among them; a function of the weights and the step."""

    @abstractmethod
    def evaluate(self, model: Any, step: int, out: Path) -> dict[str, Any]:
        """Figures of the (averaged) model on held-out scenes; may draw a grid of pictures."""

    @abstractmethod
    def export(self, model: Any, out: Path) -> None:
        """Write the finished (averaged) model."""

    def adopt(self, model: Any, folder: Path) -> None:
        """Give the model the weights of a saved pipeline, if it is a part of one."""
        raise ValueError(f"{str(folder)!r} is a pipeline; this stage continues from its own run")

    def close(self) -> None:  # noqa: B027
        """Stop whatever works in the background."""


def compiled(module: nn.Module, recipe: Recipe, device: str) -> Any:
    """The module, compiled where that pays; its weights stay shared."""
    if not (recipe["compile"] and device.startswith("cuda")):
        return module
    return torch.compile(module, mode=recipe["compile_mode"])


class Loop:
    """One run: ``out`` receives log.jsonl, checkpoint.pt, weights.pt and the stage's exports."""

    def __init__(self, stage: Stage, recipe: Recipe, out: Path, device: str) -> None:
        check_choice("decay", recipe["decay"], ("cosine", "time", "constant"))
        self.stage, self.recipe, self.out, self.device = stage, recipe, out, device
        self.cuda = device.startswith("cuda")
        self.model = stage.model
        self.ema = copy.deepcopy(stage.model).eval().requires_grad_(False)
        # At step k the decay is min(ema, (1 + k) / (10 + k)): early weights are forgotten soon.
        self.average = EMAModel([], decay=recipe["ema"], update_after_step=-1, foreach=self.cuda)
        self.average.shadow_params = list(self.ema.parameters())  # updated in place
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=recipe["lr"],
            weight_decay=recipe["weight_decay"],
            betas=(0.9, 0.99),
            fused=self.cuda,
        )
        self.step = self.first = 0  # ``first`` is the step at which the optimizer was new
        self.minutes = 0.0  # spent by the run so far, before and after resuming
        self.generator = torch.Generator(device)
        out.mkdir(parents=True, exist_ok=True)

    def run(
        self, minutes: float | None, begun: float, watch: Watch | None = None
    ) -> dict[str, Any]:
        """Train to the last step or for so many minutes since ``begun``; then export.

        A resumed run counts the minutes it had spent before.
        """
        recipe = self.recipe
        begun -= 60 * self.minutes
        figures: dict[str, Any] = {}
        saved = mark = time.monotonic()
        mark_step = self.step
        self.model.train()
        while self.step < recipe["steps"]:
            self.minutes = (time.monotonic() - begun) / 60
            if minutes is not None and self.minutes >= minutes:
                break
            losses = self._update(self._rate(self.minutes, minutes))
            if self.step % recipe["log_every"] == 0 or self.step == 1:
                values = {name: float(value) for name, value in losses.items()}
                now = time.monotonic()
                speed = (self.step - mark_step) / max(now - mark, 1e-9)
                mark, mark_step = now, self.step
                self._log({**values, "steps_per_s": round(speed, 2)}, begun)
                if not math.isfinite(values["loss"]):
                    raise FloatingPointError(f"the loss is {values['loss']} at step {self.step}")
            if self.step % recipe["evaluate_every"] == 0:
                figures = self._evaluate(begun, watch)
                mark, mark_step = time.monotonic(), self.step
            if self.step in recipe["snapshots"]:
                self.stage.export(self.ema, self.out / f"step-{self.step:06d}")
            if time.monotonic() - saved > 60 * recipe["checkpoint_minutes"]:
                self.save()
                saved = time.monotonic()
        self.save()
        if not figures or self.step % recipe["evaluate_every"]:
            figures = self._evaluate(begun, watch)
        self.stage.export(self.ema, self.out)
        return {"step": self.step, **figures}

    def save(self) -> None:
        """checkpoint.pt continues exactly; weights.pt (float16) starts a run elsewhere."""
        state: dict[str, Any] = {
            "step": self.step,
            "first": self.first,
            "minutes": self.minutes,
            "recipe": self.recipe,
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        write_state(state, self.out / "checkpoint.pt")
        half = {
            name: {k: v.half() if v.is_floating_point() else v for k, v in state[name].items()}
            for name in ("model", "ema")
        }
        write_state({"step": self.step, "recipe": self.recipe, **half}, self.out / "weights.pt")

    def load(self, path: Path) -> None:
        """Continue from a checkpoint; from weights alone with a new optimizer and warm-up; or
        begin anew from the weights of a saved pipeline."""
        if (path / "model_index.json").is_file():
            for module in (self.model, self.ema):
                self.stage.adopt(module, path)
            print(f"begun from {path}", file=sys.stderr)
            return
        path = path / "checkpoint.pt" if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            for module, name in ((self.model, "model"), (self.ema, "ema")):
                module.load_state_dict(state[name])
            self.step = self.average.optimization_step = state["step"]
        except (pickle.UnpicklingError, EOFError, KeyError, RuntimeError) as error:
            what = str(error).splitlines()[0]
            raise ValueError(f"{str(path)!r} is no checkpoint of this recipe: {what}") from error
        self.minutes = state.get("minutes", 0.0)
        self.first = state.get("first", self.step)
        if "optimizer" in state:
            trained = state["recipe"]
            changed = [name for name in _FIXED if trained.get(name) != self.recipe.get(name)]
            if changed:
                raise ValueError(f"{str(path)!r} was trained with another {', '.join(changed)}")
            self.optimizer.load_state_dict(state["optimizer"])
        print(f"resumed {path} at step {self.step}", file=sys.stderr)

    def _update(self, rate: float) -> dict[str, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.generator.manual_seed(self.recipe["seed"] * 1_000_003 + self.step)
        kind = torch.device(self.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=self.cuda or self.recipe["bfloat16"]):
            losses = self.stage.losses(self.step, self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.parameters, self.recipe["clip"], foreach=self.cuda)
        self.optimizer.step()
        self.step += 1
        self.average.step(self.model.parameters())
        return {**{k: v.detach() for k, v in losses.items()}, "gradient": norm.detach()}

    def _rate(self, elapsed: float, minutes: float | None) -> float:
        """Linear warm-up, then the decay."""
        recipe, low = self.recipe, self.recipe["final_lr"]
        peak = recipe["lr"] * min(1.0, (self.step - self.first + 1) / max(recipe["warmup"], 1))
        if recipe["decay"] == "constant":
            return float(peak)
        progress = self.step / recipe["steps"]
        if recipe["decay"] == "time" and minutes is not None:
            progress = max(progress, min(elapsed / minutes, 1.0))
        return float(peak * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2))

    def _evaluate(self, begun: float, watch: Watch | None) -> dict[str, Any]:
        start = time.monotonic()
        figures = self.stage.evaluate(self.ema, self.step, self.out)
        self._log({**figures, "evaluated_s": round(time.monotonic() - start, 2)}, begun)
        if watch is not None:
            watch(self.step, figures)
        return figures

    def _log(self, values: Mapping[str, Any], begun: float) -> None:
        minutes = round((time.monotonic() - begun) / 60, 3)
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({"step": self.step, "minutes": minutes, **values}) + "\n")
        shown = " ".join(f"{k} {v:.4g}" for k, v in values.items() if isinstance(v, float))
        print(f"step {self.step} {minutes:.2f} min {shown}", file=sys.stderr)
