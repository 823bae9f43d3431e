"""Results in folders: pictures for people, and what `Alignment.load` gives back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pixalign.alignment.trust import Trust
from pixalign.config import AlignConfig
from pixalign.core.files import read_arrays, read_json, write_arrays, write_json, writing_folder
from pixalign.core.values import Phrase
from pixalign.pictures import drawing as viz
from pixalign.pictures.saving import mask_image, write_png

if TYPE_CHECKING:
    from pixalign.alignment.result import Alignment

RECORD, ARRAYS = "result.json", "result.npz"
_OF_RESULT = ("image", "classes", "background_share", "threshold", "warnings", "config")
_NUMBERS = ("losses", "elbo", "scores", "heatmaps")


def save_alignment(
    result: Alignment, folder: str | os.PathLike[str], threshold: float | None
) -> list[Path]:
    """Write a result's files, all or none of them; see `Alignment.save`."""
    record, mask = result.to_dict(threshold), result.mask(threshold)
    overlay, names = result.overlay(threshold), [row["heatmap"] for row in record["classes"]]
    arrays = {name: getattr(result, name) for name in _NUMBERS}
    arrays |= {} if result.evidence is None else {"evidence": result.evidence}
    with writing_folder(folder) as (target, final):
        stale = _listed_heatmaps(final / RECORD) - set(names)
        write_png(target / "mask.png", mask_image(mask, viz.palette(len(result.phrases))))
        write_png(target / "overlay.png", overlay)
        for name, heatmap in zip(names, result.heatmaps, strict=True):
            grey = Image.fromarray(np.round(heatmap * 255).astype(np.uint8))
            write_png(target / name, grey)
        write_arrays(target / ARRAYS, {**arrays, "image": np.asarray(result.image)})
        write_json(target / RECORD, record)
    for name in stale:
        (final / name).unlink(missing_ok=True)
    return [final / name for name in ("mask.png", "overlay.png", *names, ARRAYS, RECORD)]


def load_alignment(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of the `Alignment` that was saved into a folder."""
    record, arrays = read_json(Path(folder) / RECORD), read_arrays(Path(folder) / ARRAYS)
    try:
        phrases = tuple(Phrase(row["name"], row["phrase"]) for row in record["classes"])
        verdicts = [row["trust"] for row in record["classes"]]
        trust = None if None in verdicts else tuple(Trust(**verdict) for verdict in verdicts)
        image = Image.fromarray(arrays.pop("image"))
        _check_shapes(arrays, len(phrases), (image.height, image.width))
        return {
            "image": image,
            "phrases": phrases,
            "config": AlignConfig(**record["config"]),
            "trust": trust,
            "warnings": tuple(record["warnings"]),
            "provenance": {key: value for key, value in record.items() if key not in _OF_RESULT},
            **arrays,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{os.fspath(folder)!r} holds no result that can be read"
        raise ValueError(f"{what}: {error}") from error


def _check_shapes(arrays: Mapping[str, np.ndarray], count: int, size: tuple[int, int]) -> None:
    if not set(_NUMBERS) <= set(arrays) <= {*_NUMBERS, "evidence"}:
        raise ValueError(f"{ARRAYS} has {', '.join(arrays)}; allowed: {', '.join(_NUMBERS)}")
    if arrays["heatmaps"].shape != (count, *size):
        raise ValueError(f"heatmaps are {arrays['heatmaps'].shape}, not {(count, *size)}")
    for name, array in arrays.items():
        if array.dtype != np.float32 or len(array) != count:
            raise ValueError(f"{name} is {array.dtype} {array.shape}, not of {count} classes")


def _listed_heatmaps(path: Path) -> set[str]:
    """The heatmap files that an earlier result.json of ours speaks of."""
    try:
        names = {str(row["heatmap"]) for row in read_json(path)["classes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if re.fullmatch(r"heatmap_\d+_[\w-]+\.png", name)}
