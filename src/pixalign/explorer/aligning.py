"""The tab "align": one measurement of a picture, and what settings make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pixalign.alignment.result import Alignment
from pixalign.alignment.sharing import measurement_names
from pixalign.alignment.trust import Trust
from pixalign.config import AlignConfig
from pixalign.core.checks import check_choice
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Phrase
from pixalign.explorer.sessions import AlignedPicture, Picture, Session
from pixalign.methods import METHODS
from pixalign.methods.dense import Dense

# How many passes are made, by the name that the page gives it.
DETAILS: dict[str, Callable[[], AlignConfig]] = {"quick": AlignConfig.fast, "full": AlignConfig}
_PASSES = ("elbo_steps", "elbo_range", "collect_steps")
PAPER = "paper"  # the paper's settings, with the classes in the order of the shared prompt
# Methods whose maps need no further passes, and the field of the config that their slider moves.
SHARED = {"dense": "evidence_strength", "elbo": "gamma", "attention": None, PAPER: None}

SENTENCES = {
    "sure": "where its map points, this word explains the picture best",
    "confused": "where its map points, “{other}” explains the picture better",
    "blind": "its map points where none of the words explains the picture",
    "absent": "this word explains the picture hardly better than no word does",
}


def methods_of(model: AlignmentModel) -> list[str]:
    """The methods that a person may choose on this model, those without further passes first."""
    others = [
        name
        for name, kind in METHODS.items()
        if name not in SHARED and not kind.supervised and kind.reads(model.backbone)
    ]
    return [*SHARED, *others]


def check_method(model: AlignmentModel, method: str) -> None:
    """Refuse a method that a person cannot choose on this model."""
    check_choice("method", method, methods_of(model))


def settings(method: str, detail: str, strength: float | None = None) -> tuple[str, AlignConfig]:
    """The method of the library, and its config, that a choice on the page stands for."""
    check_choice("detail", detail, tuple(DETAILS))
    config = DETAILS[detail]()
    if method == PAPER:
        passes = {name: getattr(config, name) for name in _PASSES}
        return "elbo", AlignConfig.paper(prompt_order="sorted", **passes)
    field = SHARED.get(method)
    if strength is None or field is None:
        return method, config
    changed: dict[str, Any] = {field: strength}
    return method, dataclasses.replace(config, **changed)


def align(
    model: AlignmentModel,
    session: Session,
    picture: Picture,
    phrases: Sequence[Phrase],
    method: str,
    detail: str,
    seed: int,
) -> dict[str, Any]:
    """Make the passes that are lacking; the session has what they said."""
    _, config = settings("dense", detail)
    names, before = tuple(phrase.name for phrase in phrases), session.aligned
    with model.backbone.lock:
        if picture.encoded is None:
            picture.encoded = model.encode(picture.image)
        asked = (picture, names, detail, seed)
        if before is None or asked != (before.picture, before.classes, before.detail, before.seed):
            dense = Dense(model)
            known = _errors(before, picture, seed, dense.model.resolve(config, "dense"))
            measured = dense.measure(
                picture.encoded, phrases, config=config, seed=seed, errors=known
            )
            verdicts = dense.conclude(measured, config).trust or ()
            number = 1 + (0 if before is None else before.number)
            before = AlignedPicture(number, *asked, measured, verdicts)
        if method not in SHARED and method not in before.others:
            chosen, own = settings(method, detail)
            errors = before.measured.task.errors
            made = METHODS[chosen](model).align(
                picture.encoded, phrases, config=own, seed=seed, errors=errors
            )
            before.others[method] = made
    session.aligned = before
    return before.to_dict()


def _errors(before: AlignedPicture | None, picture: Picture, seed: int, config: Any) -> Any:
    """The errors that are known of this picture under these settings, whatever the words."""
    if before is None or (before.picture, before.seed) != (picture, seed):
        return None
    known = before.measured.task
    same = measurement_names(known.config)[1] == measurement_names(config)[1]
    return known.errors if same else None


def concluded(
    model: AlignmentModel, aligned: AlignedPicture, method: str, strength: float | None
) -> Alignment:
    """What a method makes of the measurement under that strength; no pass is made."""
    check_method(model, method)
    if method not in SHARED:
        if method not in aligned.others:
            raise ValueError(f"{method!r} has not read this picture yet; align it by that first")
        return aligned.others[method]
    name, config = settings(method, aligned.detail, strength)
    kind: Any = METHODS[name](model)
    result: Alignment = kind.conclude(aligned.measured, config)
    return result


def described(aligned: AlignedPicture, result: Alignment, method: str) -> dict[str, Any]:
    """What the page says beside the heatmaps of a result."""
    config = result.config
    verdicts = result.trust or aligned.trust
    field = SHARED.get(method)
    return {
        "measurement": aligned.number,
        "method": method,
        "width": result.image.width,
        "height": result.image.height,
        "threshold": config.threshold,
        "temperature": config.temperature,
        "strength": None if field is None else getattr(config, field),
        "classes": [
            {
                "name": name,
                "score": float(score) if config.calibrate == "elbo" else None,
                "elbo": float(elbo) if np.isfinite(elbo) else None,
                **_verdict(verdict),
            }
            for name, score, elbo, verdict in zip(
                result.classes, result.scores, result.elbo, verdicts, strict=True
            )
        ],
        "warnings": list(result.warnings),
    }


def _verdict(verdict: Trust) -> dict[str, Any]:
    said = SENTENCES[verdict.verdict].format(other=verdict.other)
    numbers = {name: float(value) for name, value in verdict.numbers.items()}
    about = {"other": verdict.other, "sentence": said, "numbers": numbers}
    return {"verdict": verdict.verdict, **about}
