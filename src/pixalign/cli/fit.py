"""``pixalign fit``: a model's thresholds and strength from a few masks of your own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pixalign.backbones.locations import EMBEDDED, SETTINGS_FILE, located
from pixalign.bench.datasets import open_dataset
from pixalign.bench.fitting import fit_settings
from pixalign.cli import common
from pixalign.cli.common import option
from pixalign.core.files import check_folder, write_json

_FEW = 10  # pictures, below which a fit says little


def fit(
    folder: Annotated[
        Path, typer.Argument(help="Holds images, masks (indexed PNG) and classes.txt.")
    ],
    model: common.Model = None,
    out: Annotated[
        Path | None,
        option("File for the settings.", show_default="pixalign.json in the model's folder"),
    ] = None,
    limit: Annotated[int | None, option("Only this many pictures.", min=1)] = None,
    device: common.Device = "auto",
    json_: common.Json = False,
) -> None:
    """Choose thresholds, temperatures and the strength on your own masks; write them to a file.

    Pictures, masks and classes are those of `bench run` on a folder of your own. A model's folder
    keeps the settings; for others, `segment --settings FILE` takes them.
    """
    path = out or _beside(model)
    check_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(f"output {str(path)!r} is a folder; name a file")
    dataset = open_dataset("folder", folder, None, limit)
    loaded = common.load_model(model, device, "float32", progress=False)
    with common.said_plainly():
        record = fit_settings(loaded, dataset)
    write_json(path, record["settings"])
    if json_:
        common.print_json(record)
        return
    for name, own in record["methods"].items():
        print(f"{name:<11} mIoU {own['miou']:5.1f} at threshold {own['threshold']:.2f}")
    print(f"strength: gamma {record['settings']['gamma']:.3g}", end="")
    print(", centred" if record["settings"]["centred"] else "")
    if record["pictures"] < _FEW:
        print(
            f"warning: {record['pictures']} pictures are few; expect less on others",
            file=sys.stderr,
        )
    print(f"written to {path}")


def _beside(model: str | None) -> Path:
    """The settings file of a model's folder; one that comes with the package is not changed."""
    where = Path(located(model))
    if where == EMBEDDED or not where.is_dir():
        raise ValueError("the model has no folder of its own to keep settings in; name --out FILE")
    return where / SETTINGS_FILE
