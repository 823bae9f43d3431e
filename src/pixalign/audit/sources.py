"""What a model is audited on: a dataset with masks, a folder of pictures, or prompts."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pixalign.audit.drawing import drawn_record
from pixalign.audit.records import Record, picture_record
from pixalign.bench.datasets import Dataset
from pixalign.bench.metrics import IGNORE
from pixalign.bench.subject import Subject, image_seed
from pixalign.config import AlignConfig
from pixalign.core.checks import brief
from pixalign.core.files import read_json, read_text
from pixalign.core.protocols import AlignmentModel
from pixalign.generation.prompt_sets import SetPrompt
from pixalign.generation.run import entities_in
from pixalign.labelling.classes import Lists, PictureClasses
from pixalign.labelling.manifest import find_pictures
from pixalign.text.entities import Entity
from pixalign.text.prompts import Classes, as_phrases, check_prompt


class Source(ABC):
    """Pictures in a fixed order, which every subject is asked about in the same way."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]:
        """The pictures' names."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What decides the numbers, as JSON-able values."""

    @abstractmethod
    def record(self, model: AlignmentModel, index: int, config: AlignConfig, seed: int) -> Record:
        """Measure a picture; bad input is a ValueError or an OSError."""

    @property
    def groups(self) -> Sequence[int]:
        """Of each picture a number; those of one number are resampled together."""
        return range(len(self.keys))


@dataclass(frozen=True)
class MaskedPictures(Source):
    """A dataset; ``counts`` say how often captions name each class, where that is known."""

    dataset: Dataset
    counts: Mapping[str, float] | None = None
    kind: ClassVar[str] = "masks"

    @property
    def keys(self) -> Sequence[str]:
        """Those of the dataset."""
        return self.dataset.keys

    def about(self) -> dict[str, Any]:
        """The dataset, and a digest of its pictures."""
        dataset = self.dataset
        return {
            "dataset": dataset.name,
            "split": dataset.split,
            "masks": dataset.masks_from,
            "digest": dataset.digest(),
        }

    def record(self, model: AlignmentModel, index: int, config: AlignConfig, seed: int) -> Record:
        """Under its own classes, with the pixels that each method gives them."""
        subject = Subject(self.dataset[index], index, self.dataset.classes, seed)
        truth = subject.truth.numpy()
        made = picture_record(
            model, subject.sample.image, subject.phrases, config, subject.seed, truth
        )
        counted = max(1, int((subject.sample.truth != IGNORE).sum()))
        for number, row in enumerate(made["classes"], 1):
            row["area"] = float(f"{(truth == number).sum() / counted:.6g}")
        return made


@dataclass(frozen=True)
class PlainPictures(Source):
    """A folder's pictures, each with its classes: one list for all, or lists by picture.

    What lies in the folder ``out`` is left out.
    """

    folder: Path
    classes: Classes | Lists
    out: Path
    limit: int | None = None
    kind: ClassVar[str] = "pictures"
    paths: dict[str, Path] = field(init=False)
    asked: dict[str, PictureClasses] = field(init=False)  # of each picture

    def __post_init__(self) -> None:
        found, given = find_pictures(Path(self.folder), Path(self.out)), self.classes
        by_picture = {
            key: own
            for key, own in (given.items() if isinstance(given, Mapping) else ())
            if isinstance(own, PictureClasses)
        }
        for key in by_picture:
            if key not in found:
                raise ValueError(f"{key!r} is no picture below {str(self.folder)!r}")
        if not by_picture:
            shared = PictureClasses(as_phrases(given))
            by_picture = dict.fromkeys(found, shared)
        asked = {key: by_picture[key] for key in found if key in by_picture}
        asked = {key: own for key, own in asked.items() if own.phrases}
        if not asked:
            raise ValueError(f"no picture below {str(self.folder)!r} has a class to ask for")
        object.__setattr__(self, "asked", dict(list(asked.items())[: self.limit]))
        object.__setattr__(self, "paths", {key: found[key] for key in self.asked})

    @property
    def keys(self) -> Sequence[str]:
        """Paths below the folder."""
        return tuple(self.paths)

    def about(self) -> dict[str, Any]:
        """A digest of files, classes and seeds."""
        digest = hashlib.sha256()
        for key, path in self.paths.items():
            own = self.asked[key]
            names = [(phrase.name, phrase.phrase) for phrase in own.phrases]
            digest.update(json.dumps([key, names, own.seed]).encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return {"pictures": len(self.paths), "digest": digest.hexdigest()}

    def record(self, model: AlignmentModel, index: int, config: AlignConfig, seed: int) -> Record:
        """Under its classes; a picture that cannot be read has a reason instead."""
        key = self.keys[index]
        own = self.asked[key]
        chosen = image_seed(seed, key) if own.seed is None else own.seed
        try:
            return picture_record(model, self.paths[key], own.phrases, config, chosen)
        except (ValueError, OSError) as error:
            return {"classes": [], "layers": {}, "failed": " ".join(str(error).split())}


@dataclass(frozen=True)
class Prompts(Source):
    """Prompts, each drawn ``count`` times with the seeds from the audit's own on.

    Entities that a prompt does not name are found by spaCy. ``guidance`` None is the family's.
    """

    prompts: Sequence[SetPrompt]
    count: int = 1
    steps: int = 50
    guidance: float | None = None
    kind: ClassVar[str] = "prompts"
    entities: list[tuple[Entity, ...]] = field(init=False)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("there are no prompts; allowed: 1 or more")
        for name, value in (("count", self.count), ("steps", self.steps)):
            if value < 1:
                raise ValueError(f"{name} is {value}; allowed: 1 or more")
        found = []
        for prompt in self.prompts:
            check_prompt(prompt.text)
            named = [list(prompt.entities)] if prompt.entities else None
            (own,) = entities_in([prompt.text], named)
            if not own:
                raise ValueError(f"prompt {prompt.text!r} names no entity; name them in a .json")
            as_phrases([entity.text for entity in own], "entity", "entities")
            found.append(own)
        object.__setattr__(self, "entities", found)

    @property
    def keys(self) -> Sequence[str]:
        """The prompts with the numbers of their pictures."""
        return [f"{p.text} · {n}" for p in self.prompts for n in range(self.count)]

    @property
    def groups(self) -> Sequence[int]:
        """Pictures of one prompt belong together."""
        return [index // self.count for index in range(len(self.keys))]

    def about(self) -> dict[str, Any]:
        """A digest of prompts and entities, and how they are drawn."""
        texts = [
            [prompt.text, [entity.text for entity in own]]
            for prompt, own in zip(self.prompts, self.entities, strict=True)
        ]
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        return {
            "prompts": len(texts),
            "digest": digest,
            "count": self.count,
            "steps": self.steps,
            "guidance": self.guidance,
        }

    def record(self, model: AlignmentModel, index: int, config: AlignConfig, seed: int) -> Record:
        """Draw it, and look at what was drawn."""
        place, number = divmod(index, self.count)
        prompt = self.prompts[place].text
        how = (self.steps, self.guidance, config, seed + number)
        return drawn_record(model, prompt, self.entities[place], *how)


def read_prompts(path: Path) -> tuple[SetPrompt, ...]:
    """Prompts of a text file, one a line (# begins a remark), or of a .json.

    That is a list of texts, or of {"prompt": ..., "entities": [...]}.
    """
    if path.suffix.lower() != ".json":
        lines = (line.strip() for line in read_text(path).splitlines())
        found = [SetPrompt(line, ()) for line in lines if line and not line.startswith("#")]
    else:
        content = read_json(path)
        if not isinstance(content, list):
            raise ValueError(f"{str(path)!r} holds {brief(content)}; allowed: a list of prompts")
        found = [_prompt(row, f"entry {number} of {str(path)!r}")
                 for number, row in enumerate(content, 1)]  # fmt: skip
    if not found:
        raise ValueError(f"{str(path)!r} holds no prompt; write one a line")
    return tuple(found)


def _prompt(row: Any, where: str) -> SetPrompt:
    if isinstance(row, str):
        return SetPrompt(row, ())
    named = row.get("entities", []) if isinstance(row, dict) else None
    right = isinstance(named, list) and all(isinstance(name, str) for name in named)
    if not right or not isinstance(row.get("prompt"), str):
        raise ValueError(f"{where} is {brief(row)}; allowed: a text, or prompt and entities")
    return SetPrompt(row["prompt"], tuple(named or ()))
