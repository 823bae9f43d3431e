"""A finished run, as formats read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pixalign.core.ahead import read_ahead
from pixalign.labelling.manifest import Item
from pixalign.labelling.records import LabelledPicture, Labels
from pixalign.labelling.shards import Shards
from pixalign.pictures.segments import connected, segments_of

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
        regions = connected(labels.mask)
        sums = np.zeros(len(regions.labels))
        numbered = regions.numbered()
        sums[numbered] = regions.areas[numbered] * labels.scores.astype(np.float64)
        numbers = [self.classes.index(known["name"]) + 1 for known in labels.record["classes"]]
        regions = replace(regions, labels=np.array([0, *numbers])[regions.labels])
        segments_map, segments = segments_of(
            regions, sums, instances=self.instances, min_area=self.min_area
        )
        kept = np.array([0, *(segment.label for segment in segments)])
        few = len(self.classes) <= 255
        mask: Labels = (kept.astype(np.uint8) if few else kept.astype(np.uint16))[segments_map]
        size = mask.shape[0], mask.shape[1]
        path, key = item.picture.path, item.picture.key
        return LabelledPicture(key, path, size, mask, segments_map, segments, labels.record)
