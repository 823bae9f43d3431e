"""``pixalign models``, ``classes`` and ``doctor``: what there is to work with."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from pixalign.cli.choices import ListName
from pixalign.cli.common import Device, Json, print_json


def models(json_: Json = False) -> None:
    """List the families that work, the lab's models and those in the local hub cache."""
    from pixalign.backbones.locations import lab_models
    from pixalign.cli.doctor import cached_models, families

    lists: dict[str, Any] = {"lab": list(lab_models()), "cached": cached_models()}
    record = {"families": families(), **lists}
    if json_:
        print_json(record)
        return
    print("Families (any diffusers pipeline of these, by hub id, folder, file or object):")
    for family in record["families"]:
        print(f"  {family['family']:<5} {family['description']}")
        for example in family["examples"]:
            print(f"        {example}")
    print(f"Small models trained on synthetic scenes: {', '.join(record['lab'])}")
    print("In the local hub cache:" if record["cached"] else "In the local hub cache: none")
    for entry in record["cached"]:
        print(f"  {entry['family']:<5} {entry['model']}")


def classes(
    name: Annotated[
        ListName | None, typer.Argument(help="A list; how many classes each has, if left out.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the names of a dataset's classes, or of those that the scenes show."""
    from pixalign.bench.datasets.sample import class_list, class_lists
    from pixalign.scenes.atlas import class_names

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
    from pixalign.cli.doctor import examine

    record = examine(device)
    if json_:
        print_json(record)
        return
    for name, version in record["versions"].items():
        print(f"{name:<13} {version}")
    for name, state in record["devices"].items():
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
