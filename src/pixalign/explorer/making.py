"""The tabs "generate" and "edit": pictures that are made, and what was measured on the way."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from pixalign.attention.capture import WordMaps, capture
from pixalign.core.checks import check_choice
from pixalign.core.protocols import AlignmentModel
from pixalign.editing import edit
from pixalign.editing.inversion import INVERSIONS
from pixalign.editing.plan import EDITING_METHODS
from pixalign.explorer.bundle import pack
from pixalign.explorer.requests import EditBody, GenerateBody
from pixalign.generation import GENERATION_METHODS, entities_in, generate
from pixalign.pictures.saving import encoded

_SPACY = threading.Lock()  # its pipeline is asked by one thread at a time


def entity_texts(prompt: str, named: Sequence[str] | None = None) -> list[str]:
    """What a prompt names, each once: as given, or found by spaCy, which may be missing."""
    with _SPACY:
        (entities,) = entities_in([prompt], named)
    return list(dict.fromkeys(entity.text for entity in entities))


def known_entities(asked: EditBody) -> list[str]:
    """What the source prompt names: as given, or found by spaCy where that is there."""
    try:
        return entity_texts(asked.source, asked.entities)
    except ValueError:
        if asked.entities is not None:
            raise
        return []


def check_methods(
    generation: str | None = None, editing: str | None = None, inversion: str | None = None
) -> None:
    """Refuse names of methods that there are none of."""
    known = {
        generation: [name for name in GENERATION_METHODS if name != "plain"],
        editing: EDITING_METHODS,
        inversion: INVERSIONS,
    }
    for name, choices in known.items():
        if name is not None:
            check_choice("method", name, tuple(choices))


def drawn(model: AlignmentModel, asked: GenerateBody, entities: Sequence[str]) -> bytes:
    """A bundle: the prompt drawn plainly and by the method, from the same noise.

    Pictures ``plain`` and ``calibrated`` as PNG; of each, ``plain_maps`` and ``calibrated_maps``
    float32 [T, words, h, w] where attention can be captured; ``weights`` and ``errors`` float32
    [T, N] of the entities.
    """
    pictures: dict[str, Any] = {}
    how: dict[str, Any] = {"seed": asked.seed, "steps": asked.steps, "entities": list(entities)}
    words: list[str] = []
    with model.backbone.lock:
        for name, method in (("plain", "plain"), ("calibrated", asked.method)):
            options = how | ({"strength": asked.strength} if method != "plain" else {})
            made, maps = _captured(model, asked.prompt, list(entities), method, options)
            pictures[name] = encoded(made.image)
            if maps is not None:
                words = list(maps.words)
                pictures[f"{name}_maps"] = maps.steps[:, 0].numpy()
    pictures |= {"weights": made.weights, "errors": np.nan_to_num(made.errors, nan=-1.0)}
    header = {
        "prompt": asked.prompt,
        "method": asked.method,
        "strength": asked.strength,
        "seed": asked.seed,
        "entities": [{"text": entity.text, "span": list(entity.span)} for entity in made.entities],
        "words": words,
    }
    return pack(header, pictures)


def _captured(
    model: AlignmentModel, prompt: str, words: list[str], method: str, options: dict[str, Any]
) -> tuple[Any, WordMaps | None]:
    """A picture, and the maps of its words where there are any to capture."""
    if not words:
        return generate(model, prompt, method=method, **options), None
    with capture(model.backbone, words, prompt) as maps:
        made = generate(model, prompt, method=method, **options)
    return made, maps if len(maps) else None


def edited(
    model: AlignmentModel, asked: EditBody, picture: Image.Image | None, entities: Sequence[str]
) -> bytes:
    """A bundle: pictures ``source``, ``reconstruction`` and ``edited`` as PNG, ``heatmaps`` float32
    [changes, H, W] of what may change where the method has any."""
    with model.backbone.lock:
        made = edit(
            model,
            picture,
            asked.source,
            asked.target,
            method=asked.method,
            blend=asked.blend,
            inversion=asked.inversion,
            entities=list(entities) or None,
            steps=asked.steps,
            seed=asked.seed,
        )
    names = ("source", "reconstruction", "edited")
    arrays: dict[str, Any] = {name: encoded(getattr(made, name)) for name in names}
    if made.heatmaps is not None:
        arrays["heatmaps"] = made.heatmaps
    method = EDITING_METHODS[asked.method] or "elbo"
    header = {
        "source_prompt": made.source_prompt,
        "target_prompt": made.target_prompt,
        "method": made.method,
        "blend": asked.blend,
        "changes": [list(change) for change in made.changes],
        "figures": {name: _finite(value) for name, value in made.figures.items()},
        "threshold": model.resolve(None, method).threshold,
        "warnings": list(made.warnings),
    }
    return pack(header, arrays)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
