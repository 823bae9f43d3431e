"""
What each layer sees
====================

A network reads text in many layers. Some separate objects well, others hardly do. Weights by the
name of a layer show one layer at a time.
"""

import pixalign as pa
from pixalign.attention.sites import text_layers
from pixalign.pictures.drawing import heat
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 7, 1), 128)[0]
model = pa.load("lab:sd2")
encoded = model.encode(scene.image)
layers = text_layers(model.backbone.sites).names
print(layers)

# %%
# "up-4-2" is the second layer on the way up whose cells cover 4 × 4 latent positions.

rows = [[scene.image] for _ in scene.names]
for layer in layers:
    config = pa.AlignConfig.uncalibrated(
        cross_weights={layer: 1}, self_attention="none", collect_steps=3
    )
    result = model.align(encoded, scene.names, config=config)
    for row, heatmap in zip(rows, result.heatmaps, strict=True):
        row.append(heat(heatmap))
picture_grid(rows, headings=("picture", *layers), titles=scene.names, side=104, text=13).show()
