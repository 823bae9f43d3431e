"""Finished runs for tests: pictures with random masks, as the formats take them."""

import os
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from pixalign.labelling.records import LabelledPicture
from pixalign.pictures.segments import find_segments
from random_masks import smooth_mask

POLYGONS = """<View>
  <!-- as people write it -->
  <Header value="Draw"/>
  <Image name="img" value="$photo"/>
  <Choices name="c" toName="img"><Choice value="x"/></Choices>
  <RectangleLabels name="box" toName="img"><Label value="dog"/></RectangleLabels>
  <PolygonLabels name="poly" toName="img">
    <Label value="dog" predicted_values="a golden dog"/><Label value="cat"/><Label value=""/>
  </PolygonLabels>
</View>"""

CLASSES = ("dog", 'hot "dog" & <co>', "traffic light")


@dataclass
class Run:
    """Labelled pictures in memory."""

    pictures: list
    classes: tuple = CLASSES
    about: dict = field(
        default_factory=lambda: {"model": {"name": "lab:sd1"}, "config": {"method": "dense"}}
    )

    def __len__(self):
        return len(self.pictures)

    def __iter__(self):
        return iter(self.pictures)


def labelled(folder, key, mask, **options):
    """A picture on disk, and what was found in it."""
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(list(os.fsencode(key)))
    pixels = generator.integers(0, 256, (*mask.shape, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    probability = np.linspace(0.2, 0.9, mask.size).reshape(mask.shape)
    numbers, segments = find_segments(mask, probability, **options)
    return LabelledPicture(key, path, mask.shape, mask, numbers, segments)


def a_run(folder, size=(48, 64), **options):
    """Four pictures: two of one name, one in a folder, one without anything."""
    keys = ["a.jpg", "a.png", "below/ä b.png", "empty.png"]
    masks = [smooth_mask(*size, sigma=4, seed=seed) for seed in range(3)]
    masks[1] = masks[1].T.copy()
    masks.append(np.zeros(size, dtype=np.uint8))
    return Run(
        [labelled(folder / "photos", k, m, **options) for k, m in zip(keys, masks, strict=True)]
    )


def read_brush(packed):
    """rle-pack's own words, bit by bit."""
    bits = "".join(f"{byte:08b}" for byte in packed)
    place = 0

    def read(count):
        nonlocal place
        place += count
        return int(bits[place - count : place], 2)

    total, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    values = []
    while len(values) < total:
        same = read(1)
        count = read(sizes[read(2)]) + 1
        values += [read(word)] * count if same else [read(word) for _ in range(count)]
    assert len(bits) - place < 8
    return np.array(values)
