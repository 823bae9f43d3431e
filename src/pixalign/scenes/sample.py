"""Scenes by seed: which objects stand where, and what the caption says.

Scenes are drawn in chunks of fixed size, each from its own generator, so that scene i of a split
is the same however the indices are batched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pixalign.core.checks import check_choice
from pixalign.scenes.atlas import class_names, plurals, training_shares

SPLITS = {"train": 11, "val": 22, "test": 33}  # seeds
CHUNK = 256
SLOTS = 4

COLOURS = ("natural", "red", "blue", "green", "yellow", "purple", "orange", "pink")
TINTED = 0.15  # share of the objects
OBJECT_COUNTS = (0.12, 0.30, 0.30, 0.28)  # shares of the scenes with 1, 2, 3, 4 objects
COPIES = 0.15  # share of the scenes of 3 or 4 objects in which one class stands 2 or 3 times
SIZES = ((0.25, 0.65), (0.19, 0.62), (0.16, 0.55), (0.15, 0.46))  # by number of objects
SMALL, LARGE = 0.25, 0.5  # sizes that captions call so
ROTATION = np.deg2rad(25)
# How far a scene lets an object reach into the others (see settle), and how often.
TOLERANCES, TOLERANCE_SHARES = (0.0, 0.8, 1.2), (0.3, 0.35, 0.35)
CANDIDATES = 12
REACH = 0.42  # an object's radius as a share of its size

PREFIX = "a photo of "
EMPTY, ONE, ATTRIBUTES = 0.10, 0.19, 0.10  # shares of the training captions; the rest is full
MAX_WORDS = 18  # words and commas; leaves room for start and end in the 24 tokens of a text
COUNT_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}


@dataclass(frozen=True, eq=False)
class SceneBatch:
    """B scenes of K object slots in painter's order: later slots lie in front.

    A slot is empty where its label is -1. ``captions`` are what training reads; see
    ``full_captions`` and ``attribute_captions`` for the others.
    """

    labels: np.ndarray  # int64 [B, K], class index, -1 = empty slot
    styles: np.ndarray  # int64 [B, K] in {0, 1}
    centres: np.ndarray  # float32 [B, K, 2], (y, x) in [0, 1]
    sizes: np.ndarray  # float32 [B, K], side of the drawing as a share of the picture's side
    angles: np.ndarray  # float32 [B, K], radians
    flips: np.ndarray  # bool [B, K], mirrored left to right
    tints: np.ndarray  # int64 [B, K], index into COLOURS, 0 = natural colours
    backgrounds: np.ndarray  # float32 [B, 15], three colours and two waves (see render)
    order: np.ndarray  # int64 [B, K], the slots in the order in which captions name them
    captions: tuple[str, ...] = ()  # one per scene

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, scenes: slice) -> SceneBatch:
        return SceneBatch(**{name: column[scenes] for name, column in vars(self).items()})


def sample_scenes(split: str, start: int, count: int, *, objects: int | None = None) -> SceneBatch:
    """Scenes ``start`` to ``start + count`` of a split; ``objects`` forces their number.

    In training, classes follow ``training_shares``; in val and test all are equally frequent and
    captions name every class. Classes of one scene differ, except where one stands 2 or 3 times.
    """
    check_choice("split", split, tuple(SPLITS))
    if objects is not None:
        check_choice("objects", objects, tuple(range(1, SLOTS + 1)))
    return from_chunks(lambda rng: _chunk(rng, split, objects), SPLITS[split], start, count)


def from_chunks(
    chunk: Callable[[np.random.Generator], SceneBatch], seed: int, start: int, count: int
) -> SceneBatch:
    """Scenes start .. start + count - 1, cut from whole chunks, each of a generator of its own."""
    if start < 0 or count < 1:
        raise ValueError(f"start is {start}, count is {count}; allowed: start >= 0, count >= 1")
    first, last = start // CHUNK, (start + count - 1) // CHUNK
    generators = (np.random.Philox(key=[seed, number]) for number in range(first, last + 1))
    chunks = [chunk(np.random.Generator(generator)) for generator in generators]
    offset = start - first * CHUNK
    return concatenate(chunks)[offset : offset + count]


def concatenate(batches: list[SceneBatch]) -> SceneBatch:
    """One batch of all scenes, in order; the batches have equally many slots."""
    names = [name for name in vars(batches[0]) if name != "captions"]
    arrays = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
    captions = tuple(caption for batch in batches for caption in batch.captions)
    return SceneBatch(**arrays, captions=captions)


def full_captions(batch: SceneBatch) -> list[str]:
    """ "a photo of dog, palm tree": every class once, bare names."""
    names = class_names()
    return [PREFIX + ", ".join(names[i] for i in groups) for groups in class_slots(batch)]


def attribute_captions(batch: SceneBatch) -> list[str]:
    """ "a photo of two small blue birds, large dog": counts, sizes and colours where they hold.

    The last classes lose their attributes where the caption would be too long.
    """
    captions = []
    for phrases in class_phrases(batch):
        rich, bare = list(phrases.values()), [class_names()[label] for label in phrases]
        for kept in range(len(rich), -1, -1):
            caption = PREFIX + ", ".join(rich[:kept] + bare[kept:])
            if len(caption.split()) + caption.count(",") <= MAX_WORDS:
                break
        captions.append(caption)
    return captions


def class_phrases(batch: SceneBatch) -> list[dict[int, str]]:
    """For each scene {class: "two small blue birds"}, in naming order; without attributes its name.

    Unlike in `attribute_captions`, no class loses its attributes.
    """
    columns = (class_slots(batch), batch.sizes.tolist(), batch.tints.tolist())
    return [
        {
            label: _described(label, [sizes[i] for i in slots], {tints[i] for i in slots})
            for label, slots in groups.items()
        }
        for groups, sizes, tints in zip(*columns, strict=True)
    ]


def class_slots(batch: SceneBatch) -> list[dict[int, list[int]]]:
    """For each scene its classes in naming order, and the slots where they stand."""
    scenes = []
    for labels, order in zip(batch.labels.tolist(), batch.order.tolist(), strict=True):
        groups: dict[int, list[int]] = {}
        for slot in order:
            if labels[slot] >= 0:
                groups.setdefault(labels[slot], []).append(slot)
        scenes.append(groups)
    return scenes


def _described(label: int, sizes: list[float], tints: set[int]) -> str:
    """A class with the attributes that all its objects share."""
    several = len(sizes) > 1
    words = [COUNT_WORDS.get(len(sizes), "many")] if several else []
    if max(sizes) < SMALL:
        words.append("small")
    if min(sizes) > LARGE:
        words.append("large")
    if len(tints) == 1 and tints != {0}:
        words.append(COLOURS[tints.pop()])
    return " ".join([*words, (plurals() if several else class_names())[label]])


def _chunk(rng: np.random.Generator, split: str, objects: int | None) -> SceneBatch:
    """The CHUNK scenes of one generator."""
    counts = 1 + rng.choice(SLOTS, size=CHUNK, p=OBJECT_COUNTS)
    copied = rng.random(CHUNK) < COPIES
    extra = 1 + rng.integers(0, 2, CHUNK)  # how often more than once the copied class stands
    if objects is not None:
        counts = np.full(CHUNK, objects)
    distinct = np.where(copied & (counts > 2), np.maximum(counts - extra, 2), counts)

    shares = training_shares()
    if split != "train":
        shares = np.full_like(shares, 1 / len(shares))
    classes = _draw_classes(rng, shares, distinct)

    # The objects beyond the distinct classes are copies of the first one.
    slot = np.arange(SLOTS)
    source = np.where(slot < distinct[:, None], slot, 0)
    full = slot < counts[:, None]
    labels = np.where(full, np.take_along_axis(classes, source, 1), -1)
    low, high = np.moveaxis(np.array(SIZES)[counts - 1], -1, 0)[:, :, None]
    sizes = low + (high - low) * rng.random((CHUNK, SLOTS)) ** 1.2
    jitter = rng.uniform(0.9, 1.1, (CHUNK, SLOTS))
    sizes = np.take_along_axis(sizes, source, 1) * np.where(source == slot, 1.0, jitter)
    sizes = np.clip(sizes, SIZES[-1][0], SIZES[0][1])
    tints = 1 + rng.integers(0, len(COLOURS) - 1, (CHUNK, SLOTS))
    tints = np.where(rng.random((CHUNK, SLOTS)) < TINTED, tints, 0)
    tints = np.take_along_axis(tints, source, 1)

    # Large objects tend to lie behind small ones; empty slots come last.
    depth = np.where(full, 0.2 * rng.random((CHUNK, SLOTS)) - sizes, np.inf)
    painted = np.argsort(depth, axis=1)
    labels, sizes, tints, full = (
        np.take_along_axis(array, painted, 1) for array in (labels, sizes, tints, full)
    )
    styles = rng.integers(0, 2, (CHUNK, SLOTS))
    tolerance = rng.choice(TOLERANCES, size=CHUNK, p=TOLERANCE_SHARES)[:, None]
    centres = np.full((CHUNK, SLOTS, 2), np.inf)
    settle(rng, centres, sizes, full, CANDIDATES, tolerance)
    batch = SceneBatch(
        labels=labels,
        styles=styles,
        centres=centres.astype(np.float32),
        sizes=sizes.astype(np.float32),
        angles=rng.uniform(-ROTATION, ROTATION, (CHUNK, SLOTS)).astype(np.float32),
        flips=rng.random((CHUNK, SLOTS)) < 0.5,
        tints=tints,
        backgrounds=draw_backgrounds(rng),
        order=rng.permuted(np.tile(slot, (CHUNK, 1)), axis=1),
    )
    captions = _training_captions(rng, batch) if split == "train" else full_captions(batch)
    return replace(batch, captions=tuple(captions))


def _draw_classes(rng: np.random.Generator, shares: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """int64 [CHUNK, SLOTS]: ``distinct`` different classes each, then -1.

    Systematic sampling over a random order: a class is in a scene of n classes with probability
    exactly n times its share, which drawing without replacement would not keep.
    """
    permuted = rng.permuted(np.tile(np.arange(len(shares)), (CHUNK, 1)), axis=1)
    edges = np.cumsum(shares[permuted], axis=1) * distinct[:, None]
    edges[:, -1] = distinct  # not a rounding error less
    points = rng.random((CHUNK, 1)) + np.arange(SLOTS)
    places = (edges[:, None, :] <= points[:, :, None]).sum(-1)
    empty = places == len(shares)
    classes = np.take_along_axis(permuted, np.where(empty, 0, places), 1)
    shuffled = np.argsort(np.where(empty, 2.0, rng.random((CHUNK, SLOTS))), axis=1)
    return np.take_along_axis(np.where(empty, -1, classes), shuffled, 1)


def settle(
    rng: np.random.Generator,
    centres: np.ndarray,
    sizes: np.ndarray,
    full: np.ndarray,
    count: int,
    tolerance: np.ndarray | float = 0.0,
) -> None:
    """Give slots whose ``centres`` [B, K, 2] are infinite theirs, one after the other, in place.

    Each gets the first of ``count`` random places inside the picture at which it reaches no
    farther than tolerated into the objects that stand (``full`` bool [B, K]), else the best one.
    Objects are discs; the reach into each is counted in radii of the smaller of the two: 0 apart,
    1 its centre on the other's rim, 2 and more inside.
    """
    slots = np.flatnonzero(np.isinf(centres[0, :, 0]))
    radii = REACH * sizes[:, slots, None, None]
    candidates = radii + (1 - 2 * radii) * rng.random((len(centres), len(slots), count, 2))
    for slot, places in zip(slots, candidates.swapaxes(0, 1), strict=True):
        size = sizes[:, [slot]]
        distance = np.linalg.norm(places[:, None] - centres[:, :, None], axis=-1)  # [B, K, count]
        reach, smaller = REACH * (size + sizes), REACH * np.minimum(size, sizes)
        depth = np.maximum(reach[..., None] - distance, 0) / smaller[..., None]
        overlap = np.where(full[..., None], depth, 0).sum(1)
        best = np.argmin(np.maximum(overlap - tolerance, 0), axis=1)
        centres[:, slot] = places[np.arange(len(places)), best]


def draw_backgrounds(rng: np.random.Generator) -> np.ndarray:
    """float32 [CHUNK, 15]: three muted RGB colours, then two waves (cycles y, cycles x, phase)."""
    hue = rng.random((CHUNK, 3, 1))
    saturation = rng.uniform(0.08, 0.45, (CHUNK, 3, 1))
    value = rng.uniform(0.35, 0.95, (CHUNK, 3, 1))
    # Hue to RGB by the formula without cases: f(n) = V - V S max(0, min(k, 4 - k, 1)).
    k = (np.array([5.0, 3.0, 1.0]) + 6 * hue) % 6
    colours = value * (1 - saturation * np.clip(np.minimum(k, 4 - k), 0, 1))
    waves = rng.uniform(-1, 1, (CHUNK, 2, 3)) * np.array([0.9, 0.9, np.pi])
    parts = [colours.reshape(CHUNK, 9), waves.reshape(CHUNK, 6)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _training_captions(rng: np.random.Generator, batch: SceneBatch) -> Iterator[str]:
    """Full captions, some of them replaced: empty, one class of several, or attributes."""
    draws, captions = rng.random(len(batch)).tolist(), full_captions(batch)
    for draw, full, rich in zip(draws, captions, attribute_captions(batch), strict=True):
        if draw < EMPTY:
            yield ""
        elif draw < EMPTY + ONE:
            yield full.split(",")[0]
        else:
            yield rich if draw < EMPTY + ONE + ATTRIBUTES else full
