"""With what a result was made."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = ("pixalign", "torch", "diffusers", "transformers", "accelerate", "pillow", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
