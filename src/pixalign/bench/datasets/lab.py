"""The lab's scenes as datasets: bare names, attribute phrases, and the four stress dials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from pixalign.bench.datasets.sample import Dataset, Sample, label_pixels
from pixalign.bench.metrics import IGNORE
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


@dataclass(frozen=True, eq=False, kw_only=True)
class SceneDataset(Dataset):
    """Scenes, painted a few at a time when asked for; ``groups`` has one name a scene, or none."""

    classes: tuple[str, ...] = field(default_factory=class_names)
    masks_from: str = "drawn"
    scenes: SceneBatch
    keys_of: Callable[[int], Sequence[str]]  # those of a dataset of so many scenes
    described: bool = False  # whether samples carry phrases
    groups: tuple[str, ...] = ()
    _painted: dict[int, tuple[np.ndarray, ...]] = field(default_factory=dict, repr=False)

    def __getitem__(self, index: int) -> Sample:
        number, picture, truth, alone = self._scene(index)
        labels, seen = self.scenes.labels[number], label_pixels(truth)
        present = np.flatnonzero(seen[1:IGNORE]).tolist()
        return Sample(
            key=self.keys[number],
            image=Image.fromarray(picture),
            truth=truth,
            phrases=class_phrases(self.scenes[number : number + 1])[0] if self.described else {},
            group=self.groups[number] if self.groups else "",
            target=int(labels[TARGET]) if self.groups else None,
            visible={c: float(seen[c + 1] / alone[labels == c].sum()) for c in present},
        )

    def truth(self, index: int) -> np.ndarray:
        """uint8 [128, 128]."""
        return self._scene(index)[2]

    def first(self, count: int) -> Sequence[int]:
        """Fewer scenes are among these, in the order of their own keys."""
        places = {key: place for place, key in enumerate(self.keys)}
        return [places[key] for key in self.keys_of(count)]

    def counts(self) -> Mapping[str, float]:
        """Each class's share of the training objects."""
        return training_counts()

    def _scene(self, index: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """A scene's number, picture uint8 [128, 128, 3], truth uint8 [128, 128], and of each object
        the pixels int64 [K] that it would have if it stood alone."""
        number = range(len(self))[index]
        chunk, place = divmod(number, _CHUNK)
        if chunk not in self._painted:
            painted = render(self.scenes[chunk * _CHUNK : (chunk + 1) * _CHUNK], SIDE)
            if len(self._painted) == _KEPT:
                del self._painted[next(iter(self._painted))]
            arrays = (painted.pictures(), painted.masks.numpy(), painted.areas.numpy())
            self._painted[chunk] = arrays
        pictures, truths, areas = self._painted[chunk]
        return number, pictures[place], truths[place].copy(), areas[place]


def open_lab(name: str, split: str, limit: int | None) -> Dataset:
    """Scenes of 2, 3 and 4 objects in equal parts.

    In "lab-phrases" each class has a phrase with its number, size and colour.
    """
    count = limit or COUNT
    return SceneDataset(
        name=name,
        split=split,
        keys=_scene_keys(count),
        keys_of=_scene_keys,
        scenes=draw_scenes(split, count),
        described=name == "lab-phrases",
    )


def _scene_keys(count: int) -> tuple[str, ...]:
    return tuple(f"scene-{number:06d}" for number in scene_numbers(count))


def open_lab_toy(split: str, limit: int | None) -> Dataset:
    """``limit`` scenes of the base and of each level of each dial, wholly hidden targets included.

    Groups are `BASE`, which is level 0 of every dial, and "size=0.25" to "rarity=1".
    """
    count = limit or TOY_COUNT
    settings = {BASE: (DIALS[0], 0.0)}
    settings |= {f"{dial}={level:g}": (dial, level) for dial in DIALS for level in LEVELS}

    def keys_of(scenes: int) -> tuple[str, ...]:
        each = range(scenes // len(settings))
        return tuple(f"{group}-{index:06d}" for group in settings for index in each)

    return SceneDataset(
        name="lab-toy",
        split=split,
        keys=keys_of(len(settings) * count),
        keys_of=keys_of,
        scenes=concatenate([stress(*setting, 0, count) for setting in settings.values()]),
        groups=tuple(group for group in settings for _ in range(count)),
    )
