"""Scenes of known objects."""

from dataclasses import replace

import numpy as np
from PIL import Image

from pixalign.scenes.render import render
from pixalign.scenes.sample import sample_scenes


def scene_of(labels, tints):
    """A scene with these objects side by side, as it is drawn."""
    scene = sample_scenes("test", 5, 1, objects=len(labels))
    places = np.zeros_like(scene.labels) - 1
    places[0, : len(labels)] = labels
    colours = np.zeros_like(scene.tints)
    colours[0, : len(labels)] = tints
    centres = scene.centres.copy()
    centres[0, : len(labels)] = [(0.5, (i + 0.5) / len(labels)) for i in range(len(labels))]
    sizes = np.full_like(scene.sizes, 0.45)
    drawn = render(replace(scene, labels=places, tints=colours, centres=centres, sizes=sizes), 128)
    return Image.fromarray((drawn.images[0] * 255).round().byte().permute(1, 2, 0).numpy())
