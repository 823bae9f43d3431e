"""What is decided before a picture is drawn: prompts, entities, their columns, noise and path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.values import Size
from pixalign.diffusion.sampling import initial_noise
from pixalign.diffusion.schedule import SamplingPath
from pixalign.text.entities import Entity
from pixalign.text.prompts import Prompt, Span


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
    """How pictures are drawn. ``active`` is the part of the steps in which a method acts."""

    steps: int = 50
    guidance: float = 7.5
    strength: float = 1.2  # 1 / gamma
    active: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
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
        backbone: Backbone,
        requests: Sequence[GenerationRequest],
        settings: GenerationSettings,
        size: Size,
        batch_size: BatchSize,
    ) -> None:
        self.backbone, self.requests, self.settings = backbone, tuple(requests), settings
        self.batch_size = batch_size
        self.path: SamplingPath = backbone.schedule.path(settings.steps)
        self.noise = initial_noise(backbone, [request.seed for request in requests], size)
        self.texts = backbone.encode_text([request.prompt for request in requests])
        self.columns = tuple(self._columns(request) for request in requests)

    def _columns(self, request: GenerationRequest) -> tuple[EntityColumns, ...]:
        length = self.texts.embeds.shape[1]
        columns = []
        for entity in request.entities:
            spans: list[Span] = [entity.span, entity.head, *entity.modifiers]
            prompt = Prompt(request.prompt, tuple(range(len(spans))), tuple((s,) for s in spans))
            words, head, *modifiers = self.backbone.columns(prompt, length)
            if not words:
                raise ValueError(
                    f"entity {entity.text!r} is beyond what the model reads of "
                    f"{request.prompt!r}; shorten the prompt"
                )
            columns.append(EntityColumns(words, head or words, tuple(filter(None, modifiers))))
        return tuple(columns)
