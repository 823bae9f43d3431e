"""Where models are that a user calls by a short name, and the settings a folder carries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pixalign.config import BY_METHOD, AlignConfig
from pixalign.core.checks import check_choice
from pixalign.core.files import read_json

EMBEDDED = Path(__file__).parent / "weights" / "sd1-like"
EMBEDDED_NAME = "sd1-like, embedded"

LAB = "lab:"
LAB_MODELS = ("sd1", "sd2", "sdxl", "sd3", "flux", "clip", "classifier")
MODELS_VARIABLE = "PIXALIGN_MODELS"
SETTINGS_FILE = "pixalign.json"
MARKER = "pixalign-lab.json"  # says that a folder holds the lab's models

_PARTS = ("vae", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2")


def models_root() -> Path | None:
    """The folder of the lab's models: PIXALIGN_MODELS, or that of the checkout we run from."""
    named = os.environ.get(MODELS_VARIABLE)
    if named:
        return Path(named)
    ours = Path(__file__).parents[3] / "lab" / "models"
    return ours if (ours / MARKER).is_file() else None


def lab_folder(name: str) -> Path:
    """The folder of "lab:sdxl" and its like; a FileNotFoundError says where they are to be had."""
    short = name.removeprefix(LAB)
    if short not in LAB_MODELS:
        check_choice("a model of the lab", name, tuple(lab_models()))
    if short == "sd1":
        return EMBEDDED
    root = models_root()
    folder = None if root is None else root / (short if short == "classifier" else f"{short}-like")
    if folder is None or not folder.is_dir():
        where = "" if root is None else f" in {str(root)!r}"
        raise FileNotFoundError(
            f"{name!r} is not there{where}: the lab's models come with the source repository, "
            f"not with the wheel; set {MODELS_VARIABLE} to the folder lab/models of a checkout"
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


def model_name(model: str | os.PathLike[str] | None) -> str:
    """What results call a model that was named."""
    return EMBEDDED_NAME if located(model) is EMBEDDED else str(model)


def lab_models() -> dict[str, Path]:
    """The lab's text-to-image models that are there, by name."""
    models = {}
    for short in LAB_MODELS:
        try:
            folder = lab_folder(LAB + short)
        except FileNotFoundError:
            continue
        if (folder / "model_index.json").is_file():
            models[LAB + short] = folder
    return models


def model_settings(folder: Path) -> dict[str, Any]:
    """What the folder's pixalign.json says of layers, timesteps and thresholds; {} without one."""
    path = folder / SETTINGS_FILE
    return read_settings(path) if path.is_file() else {}


def read_settings(path: Path) -> dict[str, Any]:
    """A model's settings in a file, checked."""
    try:
        settings = read_json(path)
        by_method = [settings[name] for name in BY_METHOD if isinstance(settings.get(name), dict)]
        for method in (None, *(name for values in by_method for name in values)):
            AlignConfig(method=method).resolved(settings=settings)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is no model's settings: {error}") from error
    return dict(settings)
