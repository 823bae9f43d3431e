"""The lab's scenes as datasets: bare names, attribute phrases, and the four stress dials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from pixalign.bench.datasets.sample import Dataset, Sample, present_in
from pixalign.core.values import Size
from pixalign.scenes.atlas import class_names, training_counts
from pixalign.scenes.draw import draw_scenes, scene_numbers
from pixalign.scenes.render import render
from pixalign.scenes.sample import SceneBatch, class_phrases, concatenate
from pixalign.scenes.stress import DIALS, TARGET, stress

COUNT = 1002  # scenes
TOY_COUNT = 60  # scenes of each level
BASE = "base=0"  # the group of the scenes in which no dial is turned
LEVELS = (0.25, 0.5, 0.75, 1.0)
SIDE = 128
_CHUNK = 32  # scenes painted at once
_KEPT = 2  # chunks in memory
_Chunk = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False, kw_only=True)
class SceneDataset(Dataset):
    """Scenes, painted a few at a time when asked for; ``groups`` has one name a scene, or none."""

    name: str
    split: str
    keys: tuple[str, ...]
    scenes: SceneBatch
    described: bool = False  # whether samples carry phrases
    groups: tuple[str, ...] = ()
    classes: tuple[str, ...] = field(default_factory=class_names)
    masks_from: str = "drawn"
    _painted: dict[int, _Chunk] = field(default_factory=dict, repr=False)

    def __getitem__(self, index: int) -> Sample:
        number = range(len(self))[index]
        pictures, _, areas = self._chunk(number // _CHUNK)
        truth = self.truth(number)
        labels, alone = self.scenes.labels[number], areas[number % _CHUNK]
        return Sample(
            key=self.keys[number],
            image=Image.fromarray(pictures[number % _CHUNK]),
            truth=truth,
            phrases=class_phrases(self.scenes[number : number + 1])[0] if self.described else {},
            group=self.groups[number] if self.groups else "",
            target=int(labels[TARGET]) if self.groups else None,
            visible={
                label: float((truth == label + 1).sum() / alone[labels == label].sum())
                for label in present_in(truth)
            },
        )

    def truth(self, index: int) -> np.ndarray:
        """uint8 [128, 128]."""
        number = range(len(self))[index]
        truth: np.ndarray = self._chunk(number // _CHUNK)[1][number % _CHUNK].copy()
        return truth

    def size(self, index: int) -> Size:
        """The same for all."""
        return SIDE, SIDE

    def counts(self) -> Mapping[str, float]:
        """Each class's share of the training objects."""
        return training_counts()

    def _chunk(self, number: int) -> _Chunk:
        """Pictures uint8 [n, 128, 128, 3], truths uint8 [n, 128, 128], pixels of objects [n, K].

        The pixels are those that an object would have if it stood alone.
        """
        if number not in self._painted:
            painted = render(self.scenes[number * _CHUNK : (number + 1) * _CHUNK], SIDE)
            if len(self._painted) == _KEPT:
                del self._painted[next(iter(self._painted))]
            self._painted[number] = (
                painted.pictures(),
                painted.masks.numpy(),
                painted.areas.numpy(),
            )
        return self._painted[number]


def open_lab(name: str, split: str, limit: int | None) -> Dataset:
    """Scenes of 2, 3 and 4 objects in equal parts.

    In "lab-phrases" each class has a phrase with its number, size and colour.
    """
    count = limit or COUNT
    return SceneDataset(
        name=name,
        split=split,
        keys=tuple(f"scene-{number:06d}" for number in scene_numbers(count)),
        scenes=draw_scenes(split, count),
        described=name == "lab-phrases",
    )


def open_lab_toy(split: str, limit: int | None) -> Dataset:
    """``limit`` scenes of the base and of each level of each dial, wholly hidden targets included.

    Groups are `BASE`, which is level 0 of every dial, and "size=0.25" to "rarity=1".
    """
    count = limit or TOY_COUNT
    settings = [(dial, level) for dial in DIALS for level in LEVELS]
    batches = [stress(DIALS[0], 0.0, 0, count), *(stress(*pair, 0, count) for pair in settings)]
    groups = [BASE, *(f"{dial}={level:g}" for dial, level in settings)]
    return SceneDataset(
        name="lab-toy",
        split=split,
        keys=tuple(f"{group}-{index:06d}" for group in groups for index in range(count)),
        scenes=concatenate(batches),
        groups=tuple(group for group in groups for _ in range(count)),
    )
