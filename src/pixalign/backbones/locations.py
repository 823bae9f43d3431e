"""The models of the lab, by name, and the settings a model's folder carries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pixalign.core.checks import check_choice

EMBEDDED = Path(__file__).parent / "weights" / "sd1-like"

LAB = "lab:"
LAB_MODELS = ("sd1", "sd2", "sdxl", "sd3", "clip", "classifier")
MODELS_VARIABLE = "PIXALIGN_MODELS"


def lab_folder(name: str) -> Path:
    """The folder of "lab:sdxl" and its like; a FileNotFoundError says where they are to be had.

    The embedded "lab:sd1" is part of the package. The others are in the folder ``models`` of the
    source repository, or in the one that the environment variable PIXALIGN_MODELS names.
    """
    short = name.removeprefix(LAB)
    check_choice("a model of the lab", short, LAB_MODELS)
    if short == "sd1":
        return EMBEDDED
    named = os.environ.get(MODELS_VARIABLE)
    root = Path(named) if named else Path(__file__).parents[3] / "lab" / "models"
    folder = root / (short if short == "classifier" else f"{short}-like")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{name!r} is not in {str(root)!r}: the lab's models come with the source repository, "
            f"not with the wheel; set {MODELS_VARIABLE} to the folder `models` of a checkout"
        )
    for part in folder.iterdir():
        broken = part.is_symlink() and not part.exists()
        if broken or (part.name in _PARTS and part.is_file()):
            raise FileNotFoundError(
                f"{str(part)!r} is a link that this checkout could not follow; the models share "
                "parts by symbolic links (with git on Windows: git config core.symlinks true)"
            )
    return folder


def located(model: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Where a model is: the embedded one for None, the folder of "lab:NAME", or what is given."""
    if model is None:
        return EMBEDDED
    return lab_folder(str(model)) if str(model).startswith(LAB) else model


def model_name(model: Any) -> str | None:
    """What results call a model that was named; None for one that was given as an object."""
    if model is not None and not isinstance(model, str | os.PathLike):
        return None
    return "sd1-like, embedded" if located(model) is EMBEDDED else str(model)


def lab_models() -> dict[str, Path]:
    """The lab's text-to-image models that are there, by name."""
    found = {}
    for short in LAB_MODELS:
        try:
            folder = lab_folder(LAB + short)
        except FileNotFoundError:
            continue
        if (folder / "model_index.json").is_file():
            found[LAB + short] = folder
    return found


_PARTS = ("vae", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2")
