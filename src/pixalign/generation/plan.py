"""What is decided before a picture is drawn: prompts, entities, their columns, noise and path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pixalign.backbones import Backbone
from pixalign.core.checks import check_number
from pixalign.core.protocols import AlignmentModel
from pixalign.core.values import Size
from pixalign.diffusion.sampling import Sampler, initial_noise
from pixalign.text.entities import Entity
from pixalign.text.prompts import Span


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, the seed of its noise, and the entities that must not be missing."""

    prompt: str
    seed: int
    entities: tuple[Entity, ...] = ()


@dataclass(frozen=True)
class EntityColumns:
    """The text columns of one entity: of all its words, its noun, and each of its modifiers."""

    words: tuple[int, ...]
    head: tuple[int, ...]
    modifiers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class GenerationSettings:
    """How pictures are drawn. ``active`` is the part of the steps in which a method acts.

    ``released`` follows the authors' code where it differs: guidance leads away from the encoded
    empty prompt, also where the pipeline takes zeros, and what is pooled is the prompt with the
    weights written into it, "(a red car)1.2".
    """

    steps: int = 50
    guidance: float = 7.5
    strength: float = 1.2  # 1 / gamma
    active: tuple[float, float] = (0.0, 1.0)
    released: bool = False

    def __post_init__(self) -> None:
        check_number("guidance", self.guidance)
        check_number("strength", self.strength)
        if self.strength < 1:
            raise ValueError(f"strength is {self.strength}; allowed: 1 (none) or more")
        low, high = self.active
        if not 0 <= low < high <= 1:
            raise ValueError(f"active is {self.active}; allowed: 0 <= low < high <= 1")

    def acts(self, index: int) -> bool:
        """Whether a method acts at that step."""
        return self.active[0] <= index / self.steps < self.active[1]


class GenerationPlan:
    """Some pictures to be drawn together: B requests on their way from ``noise`` [B, C, h, w].

    ``texts`` [B] are the encoded prompts and ``columns[b]`` the columns of the entities of
    request b.
    """

    def __init__(
        self,
        model: AlignmentModel,
        requests: Sequence[GenerationRequest],
        settings: GenerationSettings,
        size: Size,
    ) -> None:
        backbone: Backbone = model.backbone
        self.backbone, self.requests, self.settings = backbone, tuple(requests), settings
        self.batch_size = model.batch_size
        for request in requests:
            backbone.check_prompt(request.prompt)
        self.noise = initial_noise(backbone, [request.seed for request in requests], size)
        prompts, how = [request.prompt for request in requests], (settings.steps, settings.guidance)
        latent = (self.noise.shape[-2], self.noise.shape[-1])
        self.sampler = Sampler(backbone, prompts, *how, model.batch_size, latent)
        if settings.released:
            self.sampler.empty = backbone.told(backbone.encode_text([""]), settings.guidance)
        self.texts = self.sampler.texts
        self.columns = tuple(
            tuple(self._columns(request.prompt, entity) for entity in request.entities)
            for request in requests
        )

    def columns_of(self, prompt: str, spans: Sequence[Span]) -> tuple[tuple[int, ...], ...]:
        """The text columns of each of some spans of a prompt."""
        places, length = [(span,) for span in spans], self.texts.embeds.shape[1]
        return self.backbone.columns(prompt, places, length)

    def _columns(self, prompt: str, entity: Entity) -> EntityColumns:
        spans = [entity.span, entity.head, *entity.modifiers]
        words, head, *modifiers = self.columns_of(prompt, spans)
        if not words:
            raise ValueError(
                f"entity {entity.text!r} is beyond what the model reads of {prompt!r}; "
                "shorten the prompt"
            )
        return EntityColumns(words, head or words, tuple(filter(None, modifiers)))
