"""What is decided before a picture is drawn: prompts, entities, their columns, noise and path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.core.batching import BatchSize
from pixalign.core.values import Size, TextCondition
from pixalign.diffusion.sampling import initial_noise, outputs
from pixalign.diffusion.schedule import SamplingPath
from pixalign.text.entities import Entity
from pixalign.text.prompts import Prompt, Span


@dataclass(frozen=True)
class Wish:
    """A prompt, the seed of its noise, and the entities that must not be missing."""

    prompt: str
    seed: int
    entities: tuple[Entity, ...] = ()


@dataclass(frozen=True)
class Columns:
    """The text columns of one entity: of all its words, its noun, and each of its modifiers."""

    words: tuple[int, ...]
    head: tuple[int, ...]
    modifiers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Settings:
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


class Drawing:
    """Some pictures in the making: B wishes, drawn together.

    ``texts`` [B] are the encoded prompts, ``empty`` [1] what guidance leads away from, and
    ``columns[b]`` the columns of the entities of wish b.
    """

    def __init__(
        self,
        backbone: Backbone,
        wishes: Sequence[Wish],
        settings: Settings,
        size: Size,
        batch_size: BatchSize,
    ) -> None:
        self.backbone, self.wishes, self.settings = backbone, tuple(wishes), settings
        self.batch_size = batch_size
        self.path: SamplingPath = backbone.schedule.path(settings.steps)
        self.noise = initial_noise(backbone, [wish.seed for wish in wishes], size)
        self.texts = backbone.encode_text([wish.prompt for wish in wishes])
        self.empty = backbone.unconditional()
        self.columns = tuple(self._columns(wish) for wish in wishes)

    def __len__(self) -> int:
        return len(self.wishes)

    def ask(self, index: int, z: Tensor, text: TextCondition) -> Tensor:
        """The network's output at step ``index`` for latents [R, C, h, w] and texts [R]."""
        return outputs(self.backbone, z, self.path.at(index, len(z)), text, self.batch_size)

    def _columns(self, wish: Wish) -> tuple[Columns, ...]:
        length = self.texts.embeds.shape[1]
        found = []
        for entity in wish.entities:
            spans: list[Span] = [entity.span, entity.head, *entity.modifiers]
            prompt = Prompt(wish.prompt, tuple(range(len(spans))), tuple((s,) for s in spans))
            words, head, *modifiers = self.backbone.columns(prompt, length)
            if not words:
                raise ValueError(
                    f"entity {entity.text!r} is beyond what the model reads of {wish.prompt!r}; "
                    "shorten the prompt"
                )
            found.append(Columns(words, head or words, tuple(filter(None, modifiers))))
        return tuple(found)
