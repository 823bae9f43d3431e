"""A finished run, as formats read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pixalign.labelling.manifest import Item
from pixalign.labelling.records import LabelledPicture, Labels
from pixalign.labelling.shards import Shards
from pixalign.pictures.segments import find_segments


class FinishedRun:
    """The labelled pictures, in the order of their keys, read one at a time.

    ``min_area`` and ``instances`` are those of `find_segments`; pixels outside all segments become
    background.
    """

    def __init__(
        self,
        items: Sequence[Item],
        shards: Shards,
        about: Mapping[str, Any],
        min_area: int = 0,
        instances: bool = True,
    ) -> None:
        names = (phrase.name for item in items for phrase in item.phrases)
        self.classes = tuple(dict.fromkeys(names))
        self.items = sorted(
            (item for item in items if item.id in shards), key=lambda item: item.picture.key
        )
        self.shards, self.about = shards, about
        self.min_area, self.instances = min_area, instances

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[LabelledPicture]:
        for item in self.items:
            yield self._picture(item)

    def __getitem__(self, place: int) -> LabelledPicture:
        return self._picture(self.items[place])

    def _picture(self, item: Item) -> LabelledPicture:
        labels = self.shards.read(item.id)
        numbers = [self.classes.index(known["name"]) + 1 for known in labels.record["classes"]]
        mask: Labels = np.array([0, *numbers], dtype=np.uint16)[labels.mask]
        if len(self.classes) <= 255:
            mask = mask.astype(np.uint8)
        regions, _ = find_segments(labels.mask)
        probability = np.concatenate([[0.0], labels.scores])[regions]
        segments_map, segments = find_segments(
            mask, probability, instances=self.instances, min_area=self.min_area
        )
        mask[segments_map == 0] = 0
        size = mask.shape[0], mask.shape[1]
        path, key = item.picture.path, item.picture.key
        return LabelledPicture(key, path, size, mask, segments_map, segments, labels.record)
