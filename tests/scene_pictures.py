"""Scenes of known objects."""

import numpy as np

from pixalign.diffusion.sampling import to_pictures
from pixalign.scenes.render import render
from pixalign.scenes.sample import sample_scenes


def same(left, right):
    """Whether two batches of scenes are equal in everything."""
    return all(np.array_equal(getattr(right, name), part) for name, part in vars(left).items())


def scene_of(labels, tints):
    """A scene with these objects side by side, as it is drawn."""
    count, scene = len(labels), sample_scenes("test", 5, 1, objects=len(labels))
    scene.labels[0, :count], scene.tints[0, :count] = labels, tints
    scene.centres[0, :count] = [(0.5, (i + 0.5) / count) for i in range(count)]
    scene.sizes[:] = 0.45
    return to_pictures(render(scene, 128).images)[0]
