"""`pixalign.generate`: pictures in which everything that the prompt names is there."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress
from pixalign.core.provenance import versions
from pixalign.core.values import Size
from pixalign.diffusion.sampling import picture_size, to_pictures
from pixalign.generation.attend_excite import AttendExcite
from pixalign.generation.drawing import Drawing, Settings, Wish
from pixalign.generation.methods import Elbo, Plain
from pixalign.generation.result import Generation
from pixalign.generation.syngen import SynGen
from pixalign.text.entities import NON_ENTITIES, Entity, entities_of, given_entities

METHODS: dict[str, type[Plain]] = {
    method.name: method for method in (Elbo, Plain, AttendExcite, SynGen)
}
_TOGETHER = 64  # pictures in the making at once


def generate(
    model: Any,
    prompt: str | Sequence[str],
    *,
    method: str = "elbo",
    entities: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ignored: frozenset[str] = NON_ENTITIES,
    seed: int = 0,
    count: int = 1,
    steps: int = 50,
    guidance: float | None = None,
    strength: float = 1.2,
    active: tuple[float, float] = (0.0, 1.0),
    size: Size | None = None,
) -> list[Generation]:
    """Draw ``count`` pictures of a prompt, or of each of several: seeds seed, seed + 1, ...

    ``model`` is a hub id, a folder, "lab:NAME", a loaded pipeline, or None for the embedded model.
    ``entities`` are the phrases that must not be missing, a list for the prompt or for each of
    several; None finds them with spaCy, leaving out nouns in ``ignored``. A prompt that lacks what
    the method needs ("elbo": two entities) is sampled plainly, which is said once. ``strength`` is
    1 / gamma, ``active`` the part of the steps in which a method acts. Each picture depends on its
    prompt and seed alone, but for rounding, which only Attend-and-Excite enlarges.
    """
    check_choice("method", method, tuple(METHODS))
    if count < 1:
        raise ValueError(f"count is {count}; allowed: 1 or more")
    kind = METHODS[method]
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    found = entities_in(prompts, entities, ignored) if kind.reads_entities else [()] * len(prompts)
    wishes = [
        Wish(text, seed + number, named)
        for text, named in zip(prompts, found, strict=True)
        for number in range(count)
    ]
    _say_plain(wishes, kind)
    backbone = model.backbone
    kind.check(backbone)
    settings = Settings(
        steps, backbone.guidance if guidance is None else guidance, strength, active
    )
    where = picture_size(backbone, size)
    limits, progress = model.batch_size, model.progress
    results: list[Generation] = []
    with Progress(steps * len(wishes), f"generate {method}", progress, "step") as bar:
        for first in range(0, len(wishes), _TOGETHER):
            part = wishes[first : first + _TOGETHER]
            drawing = Drawing(backbone, part, settings, where, limits)
            results += draw(drawing, kind, bar)
    return results


def draw(drawing: Drawing, kind: type[Plain], bar: Progress) -> list[Generation]:
    """Go the whole path with one method, and decode what it leads to."""
    made, z = kind(drawing), drawing.noise
    backbone, settings = drawing.backbone, drawing.settings
    try:
        for index in range(len(drawing.path)):
            z = made.before(index, z)
            z = drawing.path.advance(backbone.objective, made.output(index, z), z, index)
            bar.advance(len(drawing))
        images = to_pictures(backbone.decode_latents(z))
    finally:
        backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
    record = {
        "steps": settings.steps,
        "guidance": settings.guidance,
        "strength": settings.strength,
        "active": list(settings.active),
        "model": backbone.record(),
        "versions": versions(),
    }
    return [
        Generation(
            image=image,
            prompt=wish.prompt,
            seed=wish.seed,
            method=kind.name,
            entities=wish.entities,
            weights=made.weights[picture].numpy(),
            errors=made.errors[picture].numpy(),
            provenance=record,
        )
        for picture, (image, wish) in enumerate(zip(images, drawing.wishes, strict=True))
    ]


def entities_in(
    prompts: Sequence[str],
    entities: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ignored: frozenset[str] = NON_ENTITIES,
) -> list[tuple[Entity, ...]]:
    """The entities of each prompt, found or given: one list for all prompts, or one for each."""
    if entities is None:
        return [entities_of(text, ignored=ignored) for text in prompts]
    if isinstance(entities, str):
        raise ValueError(f"entities is {entities!r}; give a list, such as ['dog', 'red car']")
    words = [one for one in entities if isinstance(one, str)]
    lists = [words] * len(prompts) if len(words) == len(entities) else [list(e) for e in entities]
    if len(lists) != len(prompts):
        raise ValueError(f"{len(lists)} lists of entities for {len(prompts)} prompts")
    return [given_entities(text, one) for text, one in zip(prompts, lists, strict=True)]


def _say_plain(wishes: Sequence[Wish], kind: type[Plain]) -> None:
    plain = list(dict.fromkeys(w.prompt for w in wishes if not kind.helps(w.entities)))
    if plain:
        others = f", and so are {len(plain) - 1} more" if len(plain) > 1 else ""
        warnings.warn(
            f"{kind.name!r} needs {kind.needs}; {plain[0]!r} is sampled plainly{others}",
            UserWarning,
            stacklevel=3,
        )
