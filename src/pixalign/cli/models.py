"""``pixalign models``, ``classes`` and ``doctor``: what there is to work with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from pixalign.backbones.load import FAMILIES, family_of_folder, resolve_device, resolve_dtype
from pixalign.backbones.locations import lab_models
from pixalign.bench.datasets.sample import class_list, class_lists
from pixalign.cli.choices import ListName
from pixalign.cli.common import Device, Json, print_json
from pixalign.core.provenance import versions
from pixalign.scenes.atlas import class_names


def models(json_: Json = False) -> None:
    """List the families that work, the lab's models and those in the local hub cache."""
    families: list[dict[str, Any]] = [
        {"family": name, "description": family.description, "examples": list(family.examples)}
        for name, family in FAMILIES.items()
    ]
    cached = cached_models()
    if json_:
        print_json({"families": families, "lab": list(lab_models()), "cached": cached})
        return
    print("Families (any diffusers pipeline of these, by hub id, folder, file or object):")
    for family in families:
        print(f"  {family['family']:<5} {family['description']}")
        for example in family["examples"]:
            print(f"        {example}")
    print(f"Small models trained on synthetic scenes: {', '.join(lab_models())}")
    print("In the local hub cache:" if cached else "In the local hub cache: none")
    for entry in cached:
        print(f"  {entry['family']:<5} {entry['model']}")


def classes(
    name: Annotated[
        ListName | None, typer.Argument(help="A list; how many classes each has, if left out.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the names of a dataset's classes, or of those that the scenes show."""
    lists = {key: class_list(key) for key in class_lists()} | {"scenes": class_names()}
    if json_:
        print_json(lists if name is None else lists[name])
    elif name is None:
        for key, names in lists.items():
            print(f"{key:<8} {len(names)} classes")
    else:
        print("\n".join(lists[name]))


def doctor(device: Device = "auto", json_: Json = False) -> None:
    """Say what device, number type, versions and models are usable."""
    record = examine(device)
    if json_:
        print_json(record)
        return
    for name, state in (record["versions"] | record["devices"]).items():
        print(f"{name:<13} {state}")
    print(f"{'chosen':<13} {record['device']}")
    for family, dtype in record["dtypes"].items():
        print(f"{'':<13} {family} runs in {dtype}")
    for entry in record["cached"]:
        print(f"{'model':<13} {entry['model']} ({entry['family']})")
    if not record["cached"]:
        print(f"{'models':<13} none in the local hub cache")
    for problem in record["problems"]:
        print(f"problem: {problem}", file=sys.stderr)
    if not record["problems"]:
        print("All is well.")


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
