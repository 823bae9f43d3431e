"""With what a result was made."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

import torch

PACKAGES = ("pixalign", "torch", "diffusers", "transformers", "accelerate", "pillow", "numpy")


def device_name(device: torch.device) -> str:
    """What the device is called by its maker, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
