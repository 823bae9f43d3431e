"""With what a result was made."""

from __future__ import annotations

import platform
from importlib import metadata

import torch

PACKAGES = ("pixalign", "torch", "diffusers", "transformers", "accelerate", "pillow", "numpy")


def device_name(device: torch.device) -> str:
    """What the device is called by its maker, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed
