"""Training runs of the lab at toy size."""

import torch

QUICK = {"size": 64, "batch": 8, "warmup": 2, "log_every": 2, "evaluate_every": 3, "steps": 6}


RECIPES = {
    "vae": {**QUICK, "held_out": 12, "vae": {"channels": (8, 16, 16), "groups": 4}},
    "classifier": {
        **QUICK,
        "held_out": 40,
        "bank": 48,
        "classifier": {"channels": (8, 16, 16, 16), "groups": 4},
    },
    "denoiser": {
        **QUICK,
        "sheet_every": 6,
        "sheet": {"steps": 2},
        "bank": {"count": 48, "batch": 32},
        "text": {"hidden": 16},
        "unet": {"channels": (8, 16, 16), "heads": (2, 2, 2), "groups": 4},
        "gates": {"scenes": 12, "single": 6},
    },
}


def checkpoint(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)
