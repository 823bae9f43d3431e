"""A finished run, as formats read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pixalign.core.ahead import read_ahead
from pixalign.labelling.manifest import Item
from pixalign.labelling.records import LabelledPicture, Labels
from pixalign.labelling.shards import Shards
from pixalign.pictures.segments import connected, find_segments

_MOST = 8  # pictures that are read ahead
_PIXELS = 2**25  # of them


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
        def pixels(item: Item) -> int:
            height, width = item.picture.size
            return height * width

        with read_ahead(self._picture, self.items, _MOST, pixels, _PIXELS) as pictures:
            yield from pictures

    def __getitem__(self, place: int) -> LabelledPicture:
        return self._picture(self.items[place])

    def _picture(self, item: Item) -> LabelledPicture:
        labels = self.shards.read(item.id)
        numbers = [self.classes.index(known["name"]) + 1 for known in labels.record["classes"]]
        mask: Labels = np.array([0, *numbers], dtype=np.uint16)[labels.mask]
        if len(self.classes) <= 255:
            mask = mask.astype(np.uint8)
        regions = connected(labels.mask)  # those of the mask too: no two classes share a label
        numbered, _ = find_segments(labels.mask, regions=regions)
        probability = np.concatenate([[0.0], labels.scores])[numbered]
        segments_map, segments = find_segments(
            mask, probability, instances=self.instances, min_area=self.min_area, regions=regions
        )
        mask[segments_map == 0] = 0
        size = mask.shape[0], mask.shape[1]
        path, key = item.picture.path, item.picture.key
        return LabelledPicture(key, path, size, mask, segments_map, segments, labels.record)
