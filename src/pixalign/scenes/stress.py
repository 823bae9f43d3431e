"""Four dials that weaken one object of a base scene, as in the paper's toy figure.

The base scene shows a frequent target on one side and another object on the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pixalign.core.checks import check_choice
from pixalign.scenes.atlas import training_ranks
from pixalign.scenes.sample import (
    CHUNK,
    ROTATION,
    SceneBatch,
    draw_backgrounds,
    from_chunks,
    full_captions,
    settle,
)

DIALS = ("size", "occlusion", "copies", "rarity")
SEED = 44
MAX_COPIES = 7
TARGET, OTHER = MAX_COPIES, MAX_COPIES + 1  # their slots; the copies lie behind both

BASE_SIZE, SMALLEST = 0.42, 0.1
COPY_SIZE = 0.24
DISTANCE, NEAREST = 0.46, 0.03  # between the centres of target and other, apart and occluded
FREQUENT = 16  # base targets are among so many most frequent classes
CANDIDATES = 48


def stress(dial: str, level: float, start: int, count: int) -> SceneBatch:
    """Scenes ``start`` to ``start + count`` with one dial turned to ``level`` in [0, 1].

    Level 0 is the base scene, the same for every dial. At level 1, "size" leaves a target of a
    tenth of the side, "occlusion" puts the other object almost in the target's place (measure the
    share that remains with ``Rendered.visible_shares``), "copies" adds seven more of the other
    object and "rarity" draws the target from the rarest classes. All scenes have nine slots.
    """
    check_choice("dial", dial, DIALS)
    if not 0 <= level <= 1:
        raise ValueError(f"level is {level!r}; allowed: 0 to 1")
    return from_chunks(lambda rng: _turned(rng, dial, level), SEED, start, count)


def _turned(rng: np.random.Generator, dial: str, level: float) -> SceneBatch:
    """The CHUNK scenes of one generator, with the dial turned."""
    by_rank = np.argsort(training_ranks())
    target_rank = rng.integers(0, FREQUENT, CHUNK)
    other_rank = rng.integers(FREQUENT, len(by_rank), CHUNK)
    if dial == "rarity":
        target_rank += round(level * (len(by_rank) - 1 - FREQUENT))
        target_rank += target_rank >= other_rank  # never the other object's class
    labels = np.full((CHUNK, MAX_COPIES + 2), -1)
    labels[:, TARGET], labels[:, OTHER] = by_rank[target_rank], by_rank[other_rank]

    sizes = np.full(labels.shape, COPY_SIZE, dtype=np.float32)
    sizes[:, [TARGET, OTHER]] = BASE_SIZE
    centres = _centres(rng, sizes)
    if dial == "size":
        sizes[:, TARGET] += level * (SMALLEST - BASE_SIZE)
    if dial == "occlusion":
        # The root makes up for the first steps, in which the two do not yet touch.
        way = level**0.5 * (1 - NEAREST / DISTANCE)
        centres[:, OTHER] += way * (centres[:, TARGET] - centres[:, OTHER])
    if dial == "copies":
        labels[:, : round(level * MAX_COPIES)] = labels[:, [OTHER]]

    pair, copies = (np.tile(slots, (CHUNK, 1)) for slots in ([TARGET, OTHER], range(MAX_COPIES)))
    batch = SceneBatch(
        labels=labels,
        styles=rng.integers(0, 2, labels.shape),
        centres=centres,
        sizes=sizes,
        angles=rng.uniform(-ROTATION, ROTATION, labels.shape).astype(np.float32),
        flips=rng.random(labels.shape) < 0.5,
        tints=np.zeros_like(labels),
        backgrounds=draw_backgrounds(rng),
        order=np.hstack([rng.permuted(pair, axis=1), copies]),  # no dial changes it
    )
    return replace(batch, captions=tuple(full_captions(batch)))


def _centres(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """float32 [CHUNK, slots, 2]: target and other side by side, copies where there is room."""
    centres = np.full((*sizes.shape, 2), np.inf, dtype=np.float32)
    left = 0.5 - DISTANCE / 2
    side = rng.random(CHUNK) < 0.5  # whether the target stands left
    centres[:, TARGET, 1] = np.where(side, left, 1 - left)
    centres[:, OTHER, 1] = np.where(side, 1 - left, left)
    centres[:, [TARGET, OTHER], 0] = rng.uniform(0.35, 0.65, (CHUNK, 2))
    gap = centres[:, OTHER] - centres[:, TARGET]
    # The same distance in every scene, so that "occlusion" means the same in every scene.
    gap *= DISTANCE / np.linalg.norm(gap, axis=1, keepdims=True)
    centres[:, OTHER] = centres[:, TARGET] + gap
    settle(rng, centres, sizes, np.ones(sizes.shape, dtype=bool), CANDIDATES)
    return centres
