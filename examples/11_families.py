"""
Four families, one picture
==========================

Four small models of the lab have different designs: a UNet that estimates noise, one that estimates
velocity, one with two text encoders, and a joint transformer with flow. The same call works on
each.
"""

import pixalign as pa
from pixalign.pictures.drawing import tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 7, 1), 128)[0]
truth = scene.truth.numpy()
rows = []
for name in ("lab:sd1", "lab:sd2", "lab:sdxl", "lab:sd3"):
    model = pa.load(name)
    print(model, model.backbone.objective)
    encoded = model.encode(scene.image)
    row = [(tinted(scene.image, truth), "truth")]
    for method in ("attention", "dense"):
        result = model.align(encoded, scene.names, method=method)
        right = (result.mask() == truth).mean()
        row.append((tinted(scene.image, result.mask()), f"{method}: {right:.1%} right"))
    rows.append(row)
picture_grid(rows, titles=("lab:sd1", "lab:sd2", "lab:sdxl", "lab:sd3"), side=180).show()
