"""Inversions kept on disk: they take minutes and depend on nothing but what their key holds."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from PIL import Image

from pixalign.backbones import Backbone
from pixalign.backbones.fingerprint import fingerprint
from pixalign.core.files import make_folder, read_arrays, write_arrays
from pixalign.core.protocols import AlignmentModel
from pixalign.editing.inversion import Inversion, InversionSettings, invert_pictures
from pixalign.pictures.reading import to_pixels

_FORMAT = 2
_OURS = re.compile(r"[0-9a-f]{64}\.(npz|json|safetensors)")  # the last two are of format 1


@dataclass(frozen=True)
class InversionCache:
    """A folder of inversions; when it holds more than ``max_bytes``, those unused longest go."""

    folder: Path
    max_bytes: int | None = 2 * 2**30

    @classmethod
    def of(
        cls, cache: bool | str | os.PathLike[str] | InversionCache | None
    ) -> InversionCache | None:
        """The cache that is named: True is the user's cache folder, None and False are none."""
        if cache is None or cache is False or isinstance(cache, InversionCache):
            return cache or None
        default = platformdirs.user_cache_path("pixalign") / "inversions"
        return cls(default if cache is True else Path(cache))

    def write(self, key: str, inversion: Inversion) -> None:
        """Write KEY.npz, whose arrays carry checksums."""
        arrays: dict[str, Any] = {"noise": inversion.noise.numpy()}
        if inversion.unconditional is not None:
            arrays["unconditional"] = inversion.unconditional.numpy()
        write_arrays(make_folder(self.folder) / f"{key}.npz", arrays)

    def read(self, key: str) -> Inversion | None:
        """The inversion of that key; None where there is none, or a damaged one."""
        path = self.folder / f"{key}.npz"
        try:
            arrays = read_arrays(path)
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            with suppress(OSError):  # a folder that is only read
                os.utime(path)  # used just now
            return Inversion(tensors["noise"], tensors.get("unconditional"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            warnings.warn(
                f"the kept inversion {str(path)!r} is damaged ({error}); it is made anew",
                RuntimeWarning,
                stacklevel=4,
            )
            return None

    def shrink(self) -> None:
        """Remove the inversions that were used longest ago, until the others fit."""
        if self.max_bytes is None:
            return
        with suppress(FileNotFoundError):  # another process is making room just now
            ours = [path for path in self.folder.iterdir() if _OURS.fullmatch(path.name)]
            used = 0
            for path in sorted(ours, key=lambda path: path.stat().st_mtime_ns, reverse=True):
                used += path.stat().st_size
                if used > self.max_bytes:
                    path.unlink()


def inversion_keys(
    model: AlignmentModel,
    pictures: Sequence[Image.Image],
    prompts: Sequence[str],
    settings: InversionSettings,
) -> list[str]:
    """The SHA-256 of all that each inversion depends on: pixels, size, prompt, settings, model.

    Models are told apart by name, number type, noise schedule and weights. Where these cannot be
    seen, under sequential offloading, there are no keys.
    """
    backbone: Backbone = model.backbone
    weights = fingerprint(backbone.pipe)
    if weights is None:
        return []
    height, width = (side // backbone.vae_factor for side in pictures[0].size[::-1])
    steps = backbone.path(settings.steps, (height, width)).steps
    values = {
        "format": _FORMAT,
        "settings": asdict(settings),
        "model": {"name": model.name, **backbone.record(), "device": None},
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


def inversions_of(
    model: AlignmentModel,
    pictures: Sequence[Image.Image],
    prompts: Sequence[str],
    settings: InversionSettings,
    cache: InversionCache | None = None,
) -> list[Inversion]:
    """Inversions of pictures of one size, at which the model sees them, with a prompt each.

    Those that the cache holds are read, the others made together and kept there. A model whose
    weights cannot be seen keeps nothing. A damaged file is made anew, with a warning.
    """
    known: dict[int, Inversion] = {}
    keys: list[str] = []
    if cache is not None and pictures:
        keys = inversion_keys(model, pictures, prompts, settings)
        known = {row: kept for row, key in enumerate(keys) if (kept := cache.read(key))}
    missing = [row for row in range(len(pictures)) if row not in known]
    if missing:
        size = pictures[0].height, pictures[0].width
        pixels = torch.cat([to_pixels(pictures[row], size) for row in missing])
        made = invert_pictures(model, pixels, [prompts[row] for row in missing], settings)
        known.update(zip(missing, made, strict=True))
    if cache is not None and missing and keys:
        try:
            for row in missing:
                cache.write(keys[row], known[row])
            cache.shrink()
        except OSError as error:  # minutes of work are not lost for it
            warnings.warn(
                f"inversions cannot be kept in {str(cache.folder)!r}: {error}",
                RuntimeWarning,
                stacklevel=4,
            )
    return [known[row] for row in range(len(pictures))]
