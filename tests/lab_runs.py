"""Training runs of the lab at toy size."""

import torch

from lab.train import train

QUICK = {"size": 64, "batch": 4, "warmup": 2, "log_every": 2, "evaluate_every": 2, "steps": 4}

RECIPES = {
    "vae": {**QUICK, "held_out": 8, "vae": {"channels": (8, 16, 16), "groups": 4}},
    "classifier": {
        **QUICK,
        "held_out": 40,
        "bank": 48,
        "classifier": {"channels": (8, 16, 16, 16), "groups": 4},
    },
    "denoiser": {
        **QUICK,
        "sheet_every": 4,
        "sheet": {"steps": 1},
        "bank": {"count": 24, "batch": 16},
        "text": {"hidden": 16},
        "unet": {"channels": (8, 16, 16), "heads": (2, 2, 2), "groups": 4},
        "towers": {"widths": (8, 8), "heads": 2},
        "transformer": {"layers": 2, "heads": 2, "head_width": 8},
        "streams": {"double": 1, "single": 1, "heads": 2, "head_width": 16},
        "gates": {"scenes": 6, "single": 3},
    },
    "clip": {
        **QUICK,
        "size": 48,
        "decay": "constant",
        "held_out": 40,
        "bank": {"count": 24, "batch": 16},
        "vision": {"hidden": 16, "layers": 1, "heads": 2},
        "text": {"hidden": 16, "layers": 1, "heads": 2},
        "projection": 16,
    },
}


def checkpoint(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def make_run(folder, name):
    """The run "vae", "classifier", "clip" or of a family; those it begins from are there."""
    if name in RECIPES:
        train("clip" if name == "clip" else "sd1", name, folder / name, RECIPES[name])
        return
    first = None if name == "sd1" else folder / "sd1" / "pipeline"
    recipe = {**RECIPES["denoiser"], "sheet_every": 4 if name == "sd1" else 1000}
    train(name, None, folder / name, recipe, vae=folder / "vae", resume=first, bank=folder / "bank")
