"""``pixalign models``, ``classes`` and ``doctor``: what there is to work with."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import torch
import typer

from pixalign.backbones.load import FAMILIES, family_of_folder, resolve_device, resolve_dtype
from pixalign.backbones.locations import lab_models
from pixalign.bench.datasets.sample import class_list, class_lists
from pixalign.cli.common import Device, Json, one_of, print_json
from pixalign.core.provenance import versions
from pixalign.scenes.atlas import class_names

_LISTS = (*class_lists(), "scenes")


def models(json_: Json = False) -> None:
    """List the families, how each is tested, the lab's models and those in the hub cache."""
    lab = {name: family_of_folder(folder) for name, folder in lab_models().items()}
    families: list[dict[str, Any]] = [
        {
            "family": name,
            "description": family.description,
            "examples": list(family.examples),
            "measured": [model for model, own in lab.items() if own == name],
        }
        for name, family in FAMILIES.items()
    ]
    cached = cached_models()
    if json_:
        print_json({"families": families, "lab": list(lab), "cached": cached})
        return
    wide = max(map(len, FAMILIES)) + 1
    print("Families (any diffusers pipeline of these, by hub id, folder, file or object):")
    for family in families:
        print(f"  {family['family']:<{wide}} {family['description']}")
        for example in family["examples"]:
            print(f"  {'':<{wide}}   {example}")
    print("All are tested against diffusers' own pipelines, at tiny size with random weights.")
    print("What their maps mean is measured on small models trained on synthetic scenes:")
    for family in families:
        if family["measured"]:
            print(f"  {family['family']:<{wide}} {', '.join(family['measured'])}")
    print("In the local hub cache:" if cached else "In the local hub cache: none")
    for entry in cached:
        print(f"  {entry['family']:<{wide}} {entry['model']}")


def classes(
    name: Annotated[
        str | None,
        typer.Argument(help="A list; without it, the length of each list.", **one_of(_LISTS)),
    ] = None,
    json_: Json = False,
) -> None:
    """List the classes of a dataset or of the scenes."""
    lists = {key: class_list(key) for key in class_lists()} | {"scenes": class_names()}
    if json_:
        print_json(lists if name is None else lists[name])
    elif name is None:
        for key, names in lists.items():
            own = ", which the embedded model knows" if key == "scenes" else ""
            print(f"{key:<8} {len(names)} classes{own}")
    else:
        print("\n".join(lists[name]))


def doctor(device: Device = "auto", json_: Json = False) -> None:
    """Say which devices, number types, versions and models can be used."""
    chosen, installed, cached = resolve_device(device), versions(), cached_models()
    problems = [f"{name} is {v}" for name, v in installed.items() if v == "not installed"]
    try:
        probe = torch.ones(8, 8, device=chosen) @ torch.ones(8, 8, device=chosen)
        if float(probe.sum()) != 512:
            problems.append(f"{chosen} computes wrong sums")
    except RuntimeError as error:
        problems.append(f"{chosen} does not compute: {str(error).splitlines()[0]}")
    devices = {"cpu": f"{torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    dtypes = {
        name: str(resolve_dtype("auto", chosen, family)).removeprefix("torch.")
        for name, family in FAMILIES.items()
    }
    if json_:
        record = {"versions": installed, "devices": devices, "device": str(chosen)}
        print_json(record | {"dtypes": dtypes, "cached": cached, "problems": problems})
        return
    lines = [*installed.items(), *devices.items(), ("chosen", chosen)]
    lines += [("", f"{family} runs in {dtype}") for family, dtype in dtypes.items()]
    lines += [("model", f"{entry['model']} ({entry['family']})") for entry in cached]
    lines += [] if cached else [("models", "none in the local hub cache")]
    for name, state in lines:
        print(f"{name:<13} {state}")
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    if not problems:
        print("All is well.")


def cached_models() -> list[dict[str, str]]:
    """Pipelines of known families in the local hub cache, weights included."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = []
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        weights = [f for r in repo.revisions for f in r.snapshot_path.glob("*/*.safetensors")]
        whole = {f.parents[1] for f in weights if f.parent.name in ("unet", "transformer")}
        families = {name for name in map(family_of_folder, whole) if name}
        models += [{"model": repo.repo_id, "family": family} for family in sorted(families)]
    return models
