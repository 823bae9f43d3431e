"""Scenes of the lab for people who have no picture at hand."""

from __future__ import annotations

from typing import Any

from pixalign.explorer.sessions import Picture
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

_SIDE = 512  # pixels at which scenes are drawn for people, unless the model sees more
_PREPARED = (0, 4)  # number and objects of the scene with which a demo begins
_ABSENT = "banana"  # is asked for there, though it is not in the picture


def drawn_scene(backbone: Any, number: int, objects: int) -> Picture:
    """A test scene with so many objects, by its number, and the names of what is in it."""
    side = min(1024, max(_SIDE, *backbone.native_size))
    (scene,) = labelled_scenes(sample_scenes("test", number, 1, objects=objects), side)
    return Picture(scene.image, scene.image.size, tuple(scene.names), number)


def prepared_scene(backbone: Any) -> Picture:
    """The scene with which a demo begins."""
    picture = drawn_scene(backbone, *_PREPARED)
    picture.names += (_ABSENT,)
    return picture
