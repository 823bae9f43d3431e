"""Inversions kept on disk: they take minutes and depend on nothing but what their key holds."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.files import make_folder, write_bytes, write_json
from pixalign.editing.inversion import Inversion, InversionSettings, invert_pictures
from pixalign.pictures.reading import to_pixels

_FORMAT = 1
_SAMPLES = 64  # numbers of each weight that tell models apart


def default_folder() -> Path:
    """Where inversions are kept unless told otherwise: in the user's cache."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "pixalign" / "inversions"


def inversion_keys(
    backbone: Backbone,
    pictures: Sequence[Image.Image],
    prompts: Sequence[str],
    settings: InversionSettings,
    model: str | None = None,
) -> list[str]:
    """The SHA-256 of all that each inversion depends on: pixels, size, prompt, settings, model.

    Models are told apart by name, number type, noise schedule and some numbers of each of their
    weights. Where these cannot be seen, under sequential offloading, there are no keys.
    """
    weights = _weights(backbone)
    if weights is None:
        return []
    steps = backbone.schedule.path(settings.steps).steps
    values = {
        "format": _FORMAT,
        "settings": settings.to_dict(),
        "model": {"name": model, **backbone.record(), "device": None},
        "weights": weights,
        "path": [part.tolist() for part in (steps.time, steps.alpha, steps.sigma)],
    }
    keys = []
    for picture, prompt in zip(pictures, prompts, strict=True):
        own = {**values, "size": picture.size, "prompt": prompt}
        digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode())
        digest.update(np.asarray(picture.convert("RGB")).tobytes())
        keys.append(digest.hexdigest())
    return keys


def _weights(backbone: Backbone) -> str | None:
    digest = hashlib.sha256()
    for part, model in sorted(backbone.pipe.components.items()):
        if not isinstance(model, nn.Module):
            continue
        for name, weight in sorted(model.state_dict().items()):
            if weight.is_meta:
                return None
            digest.update(f"{part}.{name} {tuple(weight.shape)}".encode())
            every = max(1, weight.numel() // _SAMPLES)
            some = weight.flatten()[::every][:_SAMPLES].float().cpu()
            digest.update(some.numpy().tobytes())
    return digest.hexdigest()


def cached_inversions(
    folder: str | os.PathLike[str] | None,
    backbone: Backbone,
    pictures: Sequence[Image.Image],
    prompts: Sequence[str],
    settings: InversionSettings,
    *,
    model: str | None = None,
    batch_size: BatchSize | None = None,
    progress: bool = False,
) -> list[Inversion]:
    """Inversions of pictures of one size, at which the model sees them, with a prompt each.

    Those that the folder holds are read, the others made together and kept there; None keeps
    nothing, nor does a model whose weights cannot be seen. A damaged file is made anew, with a
    warning.
    """
    keys: list[str] = []
    if folder is not None and pictures:
        keys = inversion_keys(backbone, pictures, prompts, settings, model)
    found: dict[int, Inversion | None] = {}
    if folder is not None:
        for row, key in enumerate(keys):
            found[row] = read_inversion(Path(folder), key, prompts[row], settings)
    missing = [row for row in range(len(pictures)) if found.get(row) is None]
    if missing:
        size = pictures[0].height, pictures[0].width
        pixels = torch.cat([to_pixels(pictures[row], size) for row in missing])
        texts = [prompts[row] for row in missing]
        made = invert_pictures(backbone, pixels, texts, settings, batch_size, progress)
        found.update(zip(missing, made, strict=True))
        if folder is not None and keys:
            for row, inversion in zip(missing, made, strict=True):
                write_inversion(make_folder(folder), keys[row], inversion)
    return [one for row in range(len(pictures)) if (one := found[row]) is not None]


def write_inversion(folder: Path, key: str, inversion: Inversion) -> None:
    """Write KEY.safetensors, and KEY.json, which vouches for it."""
    tensors = {"noise": inversion.noise.contiguous()}
    if inversion.unconditional is not None:
        tensors["unconditional"] = inversion.unconditional.contiguous()
    data = save(tensors)
    write_bytes(folder / f"{key}.safetensors", data)
    record = {
        "prompt": inversion.prompt,
        "settings": inversion.settings.to_dict(),
        "figures": {
            name: value if np.isfinite(value) else None for name, value in inversion.figures.items()
        },
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write_json(folder / f"{key}.json", record)


def read_inversion(
    folder: Path, key: str, prompt: str, settings: InversionSettings
) -> Inversion | None:
    """The inversion of that key; None where there is none, or a damaged one."""
    description, data = folder / f"{key}.json", folder / f"{key}.safetensors"
    if not description.is_file() and not data.is_file():
        return None
    try:
        record = json.loads(description.read_text(encoding="utf-8"))
        content = data.read_bytes()
        if hashlib.sha256(content).hexdigest() != record["sha256"]:
            raise ValueError("its content is not what was written")
        tensors = load(content)
        figures = {name: float("inf" if v is None else v) for name, v in record["figures"].items()}
        return Inversion(prompt, settings, tensors["noise"], tensors.get("unconditional"), figures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        warnings.warn(
            f"the kept inversion {str(data)!r} is damaged ({error}); it is made anew",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
