"""
The evidence
============

At every position, the likelihood says which class explains the picture best. Here attention puts
the cactus on the turtle, and the evidence corrects it.
"""

import numpy as np

import pixalign as pa
from pixalign.pictures.drawing import heat
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 7, 1), 128)[0]
model = pa.load("lab:sd2")
encoded = model.encode(scene.image)
plain = model.align(encoded, scene.names, method="attention")
dense = model.align(encoded, scene.names)

# %%
# ``result.evidence`` is 0 where a class explains the picture best, and below 0 elsewhere.

print(dense.evidence.shape, dense.evidence.min(), dense.evidence.max())

# %%
# Attention, evidence (bright: no other class explains this position better), and both together.

rows = []
for index in range(len(scene.names)):
    evidence = np.maximum(dense.evidence[index], -4) / 4 + 1
    rows.append(
        [
            scene.image,
            heat(plain.heatmaps[index]),
            heat(evidence),
            heat(dense.heatmaps[index]),
        ]
    )
headings = ("picture", "attention", "evidence", "dense")
picture_grid(rows, headings=headings, titles=scene.names, side=160).show()
