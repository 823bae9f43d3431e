"""`Model.generate`: pictures in which everything that the prompt names is there."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pixalign.core.checks import check_choice
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.core.values import Size
from pixalign.diffusion.sampling import picture_size, to_pictures
from pixalign.generation.gradient_methods import AttendExcite, SynGen
from pixalign.generation.methods import Elbo, GenerationMethod
from pixalign.generation.plan import GenerationPlan, GenerationRequest, GenerationSettings
from pixalign.generation.result import Generation
from pixalign.text.entities import NON_ENTITIES, Entity, entities_of, given_entities

GENERATION_METHODS: dict[str, type[GenerationMethod]] = {
    method.name: method for method in (Elbo, GenerationMethod, AttendExcite, SynGen)
}
_TOGETHER = 64  # pictures in the making at once


def generate(
    model: AlignmentModel,
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
    released: bool = False,
    latents: Any = None,
) -> Any:
    """Draw a prompt: a `Generation`. Several prompts, or ``count`` > 1, give a list.

    The list holds all pictures of the first prompt, with seeds seed, seed + 1, ..., then those of
    the second. ``entities`` are the phrases that must not be missing: a list for the prompt, or one
    for each of several. None finds them with spaCy, without the nouns in ``ignored``. A prompt that
    lacks what the method needs ("elbo": two entities) is sampled plainly, with a warning.

    ``strength`` is 1 / gamma, ``active`` the part of the steps in which a method acts. Each picture
    depends only on its prompt and seed, up to rounding, which Attend-and-Excite amplifies.
    ``latents`` float32 [C, h, w], or [B, C, h, w] for B pictures, replace the seeds' noise; each
    `Generation` holds its final latents. ``released`` follows the authors' code where it differs
    (`GenerationSettings`); then found entities also keep their articles.
    """
    check_choice("method", method, tuple(GENERATION_METHODS))
    if count < 1:
        raise ValueError(f"count is {count}; allowed: 1 or more")
    kind = GENERATION_METHODS[method]
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    found = entities_in(prompts, entities, ignored, released) if kind.needs else None
    requests = _requests(prompts, found or [()] * len(prompts), range(seed, seed + count))
    _tell_plain(kind, requests)
    kind.check(model.backbone)
    usual = model.backbone.guidance if guidance is None else guidance
    settings = GenerationSettings(steps, usual, strength, active, released)
    made = draw_requests(model, requests, settings, kind, size=size, latents=latents)
    return made[0] if isinstance(prompt, str) and count == 1 else made


def _requests(
    prompts: Sequence[str], entities: Sequence[tuple[Entity, ...]], seeds: Iterable[int]
) -> list[GenerationRequest]:
    """All pictures of the first prompt, then those of the second."""
    named = zip(prompts, entities, strict=True)
    return [GenerationRequest(text, seed, own) for text, own in named for seed in seeds]


def _tell_plain(kind: type[GenerationMethod], requests: Sequence[GenerationRequest]) -> None:
    """Warn once where prompts lack what the method needs."""
    plain = list(dict.fromkeys(r.prompt for r in requests if not kind.helps(r.entities)))
    if plain:
        others = f", and so are {len(plain) - 1} more" if len(plain) > 1 else ""
        warnings.warn(
            f"{kind.name!r} needs {kind.needs}; {plain[0]!r} is sampled plainly{others}",
            UserWarning,
            stacklevel=4,
        )


def draw_requests(
    model: AlignmentModel,
    requests: Sequence[GenerationRequest],
    settings: GenerationSettings,
    kind: type[GenerationMethod],
    *,
    size: Size | None = None,
    label: str = "generate",
    latents: Any = None,
) -> list[Generation]:
    """Draw all requests by one method, many together."""
    where = picture_size(model.backbone, size)
    begun = None if latents is None else _as_noise(latents, model.backbone, where, len(requests))
    record = {
        **dataclasses.asdict(settings),
        "active": list(settings.active),
        "model": model.record(),
        "versions": versions(),
    }
    results: list[Generation] = []
    with Progress(settings.steps * len(requests), label, model.progress, "step") as bar:
        for first in range(0, len(requests), _TOGETHER):
            plan = GenerationPlan(model, requests[first : first + _TOGETHER], settings, where)
            if begun is not None:
                plan.noise = begun[first : first + _TOGETHER]
            method = kind(plan)
            try:
                z = plan.sampler.run(plan.noise, method.output, before=method.before, bar=bar)
                images = to_pictures(plan.backbone.decode_latents(z))
            finally:
                plan.backbone.pipe.maybe_free_model_hooks()  # sends an offloaded pipeline home
            results += [
                Generation(
                    image=image,
                    prompt=request.prompt,
                    seed=request.seed,
                    method=kind.name,
                    entities=request.entities,
                    weights=method.weights[row].numpy(),
                    errors=method.errors[row].numpy(),
                    provenance=record,
                    latents=z[row].float().cpu().numpy(),
                )
                for row, (image, request) in enumerate(zip(images, plan.requests, strict=True))
            ]
    return results


def _as_noise(latents: Any, backbone: Any, size: Size, count: int) -> Tensor:
    """Given latents as float32 [B, C, h, w] on the network's device, once they suit."""
    given = torch.as_tensor(latents, dtype=torch.float32).to(backbone.device)
    given = given if given.ndim == 4 else given[None].repeat(count, 1, 1, 1)
    shape = (count, *backbone.latent_shape(size))
    if given.shape != shape or not bool(torch.isfinite(given).all()):
        raise ValueError(f"latents are {list(given.shape)}; allowed: finite numbers {list(shape)}")
    return given


def entities_in(
    prompts: Sequence[str],
    entities: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ignored: frozenset[str] = NON_ENTITIES,
    determiners: bool = False,
) -> list[tuple[Entity, ...]]:
    """The entities of each prompt, found or given: one list for all prompts, or one for each."""
    if entities is None:
        return [entities_of(text, ignored=ignored, determiners=determiners) for text in prompts]
    shared = all(isinstance(phrase, str) for phrase in entities)
    lists: Sequence[Any] = [entities] * len(prompts) if shared else entities
    if len(lists) != len(prompts):
        raise ValueError(f"{len(lists)} lists of entities for {len(prompts)} prompts")
    return [given_entities(text, phrases) for text, phrases in zip(prompts, lists, strict=True)]
