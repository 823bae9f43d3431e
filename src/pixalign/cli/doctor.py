"""What is usable on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pixalign.backbones.load import FAMILIES, family_of_folder, resolve_device, resolve_dtype
from pixalign.core.provenance import versions


def families() -> list[dict[str, Any]]:
    """Each family with its description and examples of hub ids."""
    return [
        {"family": name, "description": family.description, "examples": list(family.examples)}
        for name, family in FAMILIES.items()
    ]


def cached_models() -> list[dict[str, str]]:
    """Pipelines of known families in the local hub cache, weights included."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = []
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        snapshots = [Path(revision.snapshot_path) for revision in repo.revisions]
        whole = [s for s in snapshots if any(s.glob("unet/*.safetensors"))
                 or any(s.glob("transformer/*.safetensors"))]  # fmt: skip
        for family in sorted({name for name in map(family_of_folder, whole) if name}):
            found.append({"model": repo.repo_id, "family": family})
    return found


def examine(device: str = "auto") -> dict[str, Any]:
    """Versions, devices, number types, models, and whatever stands in the way."""
    chosen = resolve_device(device)
    problems = []
    try:
        probe = torch.ones(8, 8, device=chosen) @ torch.ones(8, 8, device=chosen)
        if float(probe.sum()) != 512:
            problems.append(f"{chosen} computes wrong sums")
    except RuntimeError as error:
        problems.append(f"{chosen} does not compute: {str(error).splitlines()[0]}")
    found = versions()
    problems += [f"{name} is {v}" for name, v in found.items() if v == "not installed"]
    return {
        "versions": found,
        "devices": _devices(),
        "device": str(chosen),
        "dtypes": {
            name: str(resolve_dtype("auto", chosen, family)).removeprefix("torch.")
            for name, family in FAMILIES.items()
        },
        "cached": cached_models(),
        "problems": problems,
    }


def _devices() -> dict[str, str]:
    devices = {"cpu": f"{torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return devices
