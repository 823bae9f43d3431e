"""AEP, attribute-enriched prompts: images/, annotations/ and phrases.json, 38 classes.

A set that `pixalign bench build` made has a classes.txt of its own.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pixalign.bench.datasets.files import FileDataset, open_masks, read_labels, shortened
from pixalign.bench.datasets.layouts import read_classes
from pixalign.bench.datasets.sample import class_list
from pixalign.core.files import read_json, write_json

HINT = "pixalign.bench.datasets.aep.convert_aep makes phrases.json from the released prompts.pkl"
_SHAPE = 'allowed: {image: {"subject": [class, ...], "phrase": [words, ...]}}, equally long'


def open_aep(home: Path, split: str) -> FileDataset:
    """All pictures, each with the phrases of those of its subjects that are classes."""
    images, masks = home / "images", home / "annotations"
    own = home / "classes.txt"
    classes = read_classes(own) if own.is_file() else class_list("aep")
    dataset = open_masks(
        "aep",
        split,
        images,
        masks,
        endings=(".png",),
        mask_ending="_gt.png",
        classes=classes,
        read=partial(read_labels, classes=len(classes), ignore=own.is_file()),
    )
    return replace(dataset, phrases=read_phrases(home / "phrases.json", dataset.keys, classes))


def read_phrases(
    path: Path, keys: Iterable[str], classes: Sequence[str]
) -> dict[str, dict[int, str]]:
    """{key: {class: phrase}}; an image without an entry or without any class is refused."""
    entries = _plain(read_json(path), path)
    by_key = {image.removesuffix(".png"): entry for image, entry in entries.items()}
    missing = [key for key in keys if key not in by_key]
    if missing:
        raise ValueError(f"{str(path)!r} has no phrases of {shortened(missing)}")
    number = {name: index for index, name in enumerate(classes)}
    phrases = {}
    for key in keys:
        subjects, words = by_key[key]["subject"], by_key[key]["phrase"]
        known = [(number[s], w) for s, w in zip(subjects, words, strict=True) if s in number]
        phrases[key] = dict(reversed(known))  # of a subject that stands twice, the first phrase
        if not phrases[key]:
            raise ValueError(
                f"{str(path)!r} gives {key} the subjects {subjects}, none of which is a class"
            )
    return phrases


def convert_aep(pickle_path: str | os.PathLike[str], json_path: str | os.PathLike[str]) -> Path:
    """Write the released pickle of phrases as JSON, without running anything that it may hold."""
    path = Path(pickle_path)
    try:
        content = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is no pickle of phrases: {error}") from error
    return write_json(Path(json_path), _plain(content, path))


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dicts, tuples, sets, strings and numbers; looks up nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Old pickles name even sets; every other name is refused."""
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset"):
            return super().find_class(module, name)
        allowed = "lists, dicts, tuples, sets, strings and integers"
        raise pickle.UnpicklingError(f"it asks for {module}.{name}; allowed: {allowed}")


def _plain(content: Any, path: Path) -> dict[str, dict[str, list[str]]]:
    """The phrases as JSON has them; anything else is refused by name."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{str(path)!r} holds a {type(content).__name__}; {_SHAPE}")
    entries: dict[str, dict[str, list[str]]] = {}
    for image, entry in content.items():
        if not isinstance(image, str | int) or not isinstance(entry, Mapping):
            wrong = f"{image!r}: a {type(entry).__name__}"
            raise ValueError(f"{str(path)!r} holds {wrong}; {_SHAPE}")
        plain = entries.setdefault(str(image), {})
        for name in ("subject", "phrase"):
            items = entry.get(name)
            if not isinstance(items, list | tuple) or not all(isinstance(i, str) for i in items):
                raise ValueError(f"{str(path)!r} has the {name} {items!r} of {image!r}; {_SHAPE}")
            plain[name] = list(items)
        if len(plain["subject"]) != len(plain["phrase"]):
            lengths = f"{len(plain['subject'])} subjects and {len(plain['phrase'])} phrases"
            raise ValueError(f"{str(path)!r} has {lengths} of {image!r}; {_SHAPE}")
    return entries
