"""Recipes: everything a training run depends on, as plain dictionaries that merge."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pixalign.core.checks import check_choice

Recipe = dict[str, Any]

COMMON: Recipe = {
    "seed": 0,
    "size": 128,  # pixels on a side
    "weight_decay": 0.01,
    "clip": 1.0,  # largest norm of a gradient
    "ema": 0.999,
    "warmup": 500,
    "decay": "cosine",  # over the steps; "time": over the minutes; "constant"
    "final_lr": 0.02,  # where the decay ends, as a part of lr
    "compile": True,  # on CUDA
    "bfloat16": False,  # products in bfloat16 on a CPU too; on CUDA they always are
    "compile_mode": "default",
    "log_every": 100,
    "evaluate_every": 1000,
    "checkpoint_minutes": 2.0,
    "snapshots": (),  # steps after which the averaged model is exported as well
    "workers": 0,  # processes that sample scenes ahead; 0: one thread
    "notes": {},  # hardware, minutes, what came out; not read
}

DEFAULTS: dict[str, Recipe] = {
    "vae": {
        "steps": 8000,
        "batch": 64,
        "lr": 1e-3,
        "l1": 1.0,
        "mse": 1.0,
        "edges": 0.5,  # L1 of the differences of neighbouring pixels
        "kl": 1e-6,
        "crop": None,  # train on random crops of this side
        "held_out": 256,
        "vae": {"channels": (32, 64, 96), "layers": 1, "latent_channels": 4, "groups": 8},
    },
    "classifier": {
        "steps": 8000,
        "batch": 256,
        "lr": 2e-3,
        "noise": 0.05,  # largest standard deviation of the noise added to images
        "blur": 2.5,  # by how much images are made smaller and enlarged again at most
        "blurred": 0.5,  # share of the images to which that happens
        "held_out": 2048,
        "bank": 120_000,  # training scenes
        "tinted": 0.4,  # share of their objects that are coloured
        "balance": 0.5,  # a colour of frequency p weighs p^-balance
        "colour": 0.5,  # weight of the colours beside the classes
        "classifier": {"channels": (32, 48, 80, 96, 96), "groups": 8},
    },
    "denoiser": {
        "steps": 45000,
        "batch": 256,
        "lr": 1e-3,
        "timesteps": "uniform",  # or "logit-normal", or "half" the batch each
        "timestep_mean": -0.5,
        "timestep_std": 1.0,
        # Encoded scenes, from which number on; a new bank every so many steps.
        "bank": {"first": 0, "count": 200_000, "batch": 1024, "refresh": 0},
        "text": {"layers": 0, "hidden": 160, "heads": 4, "position_gain": 0.3, "frozen": False},
        "unet": {
            "channels": (64, 128, 160),
            "attention": ("conv", "cross", "cross"),
            "layers": 1,
            "heads": (4, 4, 5),
            "groups": 32,
            "gain": 1.0,
            "depth": (1, 1, 1),  # transformer layers in an attention block of each level
        },
        "towers": {"widths": (96, 64), "heads": 4},  # the two text encoders of sdxl and sd3
        "transformer": {"layers": 5, "heads": 4, "head_width": 32, "patch": 2},  # of sd3
        "streams": {"double": 2, "single": 5, "heads": 4, "head_width": 32},  # of flux
        "teacher": "",  # a model of the lab whose answers take the place of the noise, or none
        "guided": 0.0,  # above 0: learn what the network that it begins from says with guidance
        "gates": {"scenes": 128, "single": 64},
        "sheet_every": 5000,
        "sheet": {"steps": 25, "guidance": 4.0},
    },
    "clip": {
        "size": 96,
        "steps": 20000,
        "batch": 512,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "bank": {"first": 1_000_000, "count": 100_000, "batch": 1024},
        "held_out": 512,
        "tinted": 0.5,  # share of the objects that are tinted, for words of colour to matter
        "shift": 8,  # pixels by which pictures are moved at most
        "vision": {"hidden": 128, "layers": 4, "heads": 4, "patch": 8},
        "text": {"hidden": 96, "layers": 3, "heads": 4},
        "projection": 96,
    },
}


def complete(stage: str, *recipes: Mapping[str, Any]) -> Recipe:
    """The stage's defaults with the recipes merged over them; unknown names are refused."""
    check_choice("stage", stage, tuple(DEFAULTS))
    whole = copy.deepcopy({**COMMON, **DEFAULTS[stage]})
    for recipe in recipes:
        whole = _merged(whole, recipe, "recipe")
    return whole


def read_recipe(path: Path | None) -> Recipe:
    """A recipe file's dictionary; nothing for no file."""
    if path is None:
        return {}
    recipe = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} holds a {type(recipe).__name__}; a recipe is a dictionary")
    return recipe


def _merged(defaults: Recipe, changes: Mapping[str, Any], where: str) -> Recipe:
    for name, value in changes.items():
        check_choice(f"a name in the {where}", name, tuple(defaults))
        old = defaults[name]
        if name != "notes" and isinstance(old, dict):
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} in the {where} is {value!r}; a dictionary is expected")
            value = _merged(old, value, name)
        if type(old) in (int, float) and type(value) not in (int, float):  # nor a bool
            raise ValueError(f"{name} in the {where} is {value!r}; a number is expected")
        defaults[name] = value
    return defaults
