"""Captions that are nearly right: colours exchanged, an object too many, another object.

The lab's CLIP learns from them to look closely, and is judged by them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS, SceneBatch, attribute_captions

KINDS = ("colour", "extra", "other")
Slots = tuple[np.ndarray, np.ndarray, np.ndarray]  # of one scene: labels, tints and sizes
_SIZE = 0.35  # of an object that is only named: neither small nor large


def tinted(batch: SceneBatch, share: float, rng: np.random.Generator) -> SceneBatch:
    """The scenes with that share of their objects tinted; copies of a class look alike."""
    tints = 1 + rng.integers(0, len(COLOURS) - 1, batch.labels.shape)
    tints = np.where(rng.random(batch.labels.shape) < share, tints, 0)
    for slot in range(1, tints.shape[1]):
        for earlier in range(slot):
            same = batch.labels[:, slot] == batch.labels[:, earlier]
            tints[same, slot] = tints[same, earlier]
    return replace(batch, tints=tints)


def wrong_captions(batch: SceneBatch, kind: str, rng: np.random.Generator) -> list[str]:
    """Of each scene a caption with attributes that is not true of it.

    "colour" exchanges two classes' colours, "extra" names a class that is not there, "other" names
    it in the place of one that is. Where a scene allows none (all colours alike, four objects), the
    true caption stands.
    """
    change = {"colour": _exchange, "extra": _add, "other": _rename}[kind]
    labels, tints, sizes = batch.labels.copy(), batch.tints.copy(), batch.sizes.copy()
    for scene in range(len(batch)):
        change((labels[scene], tints[scene], sizes[scene]), rng)
    return attribute_captions(replace(batch, labels=labels, tints=tints, sizes=sizes))


def without_one(batch: SceneBatch, rng: np.random.Generator) -> SceneBatch:
    """The scenes less one of their classes, which the captions still name."""
    labels = batch.labels.copy()
    for row in labels:
        row[row == rng.choice(row[row >= 0])] = -1
    return replace(batch, labels=labels)


def _exchange(scene: Slots, rng: np.random.Generator) -> None:
    """Two classes of different colours, chosen at random, have each other's."""
    labels, tints, _ = scene
    slots = rng.permutation(np.flatnonzero(labels >= 0)).tolist()
    pairs = [(a, b) for a in slots for b in slots if a < b and tints[a] != tints[b]]
    if pairs:
        first, second = pairs[rng.integers(len(pairs))]
        colours = tints[first], tints[second]
        tints[labels == labels[first]], tints[labels == labels[second]] = colours[::-1]


def _add(scene: Slots, rng: np.random.Generator) -> None:
    labels, tints, sizes = scene
    empty = np.flatnonzero(labels < 0)
    if len(empty):
        labels[empty[0]], tints[empty[0]], sizes[empty[0]] = _absent(labels, rng), 0, _SIZE


def _rename(scene: Slots, rng: np.random.Generator) -> None:
    labels, _, _ = scene
    chosen = rng.choice(labels[labels >= 0])
    labels[labels == chosen] = _absent(labels, rng)


def _absent(labels: np.ndarray, rng: np.random.Generator) -> int:
    """A class that is not in the scene."""
    while True:
        label = int(rng.integers(len(class_names())))
        if label not in labels:
            return label
