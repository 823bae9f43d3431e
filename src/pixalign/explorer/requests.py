"""What a page may ask, with the bounds of everything."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST_CLASSES = 24
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=400)]
Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80)]
Words = Annotated[list[Word], Field(max_length=MOST_CLASSES)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Steps = Annotated[int, Field(ge=1, le=100)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Detail = Literal["quick", "full"]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SceneBody(_Body):
    """A scene of the lab, by its number among those with so many objects."""

    number: Annotated[int, Field(ge=0, lt=100_000)]
    objects: Annotated[int, Field(ge=1, le=4)] = 3


class AlignBody(_Body):
    """Passes to be made for a picture and classes."""

    classes: Annotated[list[Word], Field(min_length=1, max_length=MOST_CLASSES)]
    method: Word = "dense"
    detail: Detail = "quick"
    seed: Seed = 0


class ConcludeBody(_Body):
    """What settings make of a measurement."""

    measurement: Annotated[int, Field(ge=1, lt=2**31)]
    method: Word = "dense"
    strength: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None


class DownloadBody(ConcludeBody):
    """A file of a result, at a threshold."""

    kind: Literal["mask", "overlay", "result", "coco"]
    threshold: Share | None = None


class EntitiesBody(_Body):
    """A prompt whose entities are looked for."""

    prompt: Text


class GenerateBody(_Body):
    """A picture to be drawn, and the plain one beside it."""

    prompt: Text
    entities: Words | None = None
    method: Word = "elbo"
    strength: Annotated[float, Field(ge=1, le=5, allow_inf_nan=False)] = 1.2
    steps: Steps = 30
    seed: Seed = 0


class EditBody(_Body):
    """A change of the session's picture, or of one that is drawn from the seed."""

    source: Text
    target: Text
    given: bool = True
    method: Word = "elbo"
    blend: Literal["attention", "heatmap"] | None = "heatmap"
    inversion: Word = "ddim"
    entities: Words | None = None
    steps: Steps = 30
    seed: Seed = 0
