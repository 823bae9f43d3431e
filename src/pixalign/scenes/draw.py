"""The scenes on which results are reported: 2, 3 and 4 objects in equal parts."""

from __future__ import annotations

from pixalign.scenes.sample import SceneBatch, concatenate, sample_scenes

APART = 100_000  # between the scenes of each number of objects, so that none share a background


def draw_scenes(split: str, count: int) -> SceneBatch:
    """``count`` scenes of 2, 3 and 4 objects in equal parts."""
    parts = [(n, many) for n, many in _parts(count) if many]
    return concatenate([sample_scenes(split, n * APART, many, objects=n) for n, many in parts])


def scene_numbers(count: int) -> list[int]:
    """Of each scene of `draw_scenes`, its number in its split; the same for every count."""
    return [n * APART + index for n, many in _parts(count) for index in range(many)]


def _parts(count: int) -> list[tuple[int, int]]:
    """(number of objects, number of scenes)."""
    return [(n, (count + n - 2) // 3) for n in (2, 3, 4)]
