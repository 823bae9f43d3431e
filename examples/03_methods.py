"""
Methods side by side
====================

Five ways from the same picture to masks: the default, plain attention, the paper's calibration, the
likelihood alone, and DAAM with the evidence.
"""

import numpy as np

import pixalign as pa
from pixalign.pictures.drawing import tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 7, 1), 128)[0]
model = pa.load("lab:sd2")
encoded = model.encode(scene.image)


def mean_iou(mask, truth):
    """Over the classes and the background."""
    shares = []
    for label in np.unique(truth):
        here, there = mask == label, truth == label
        shares.append((here & there).sum() / (here | there).sum())
    return np.mean(shares)


# %%
# Each method is a name. The evidence can correct baselines, too.

ways = {
    "dense": {},
    "attention": {"method": "attention"},
    "elbo, the paper's": {"method": "elbo"},
    "likelihood": {"method": "likelihood"},
    "daam": {"method": "daam"},
    "daam + evidence": {"method": "daam", "calibrate": "evidence"},
}
truth = scene.truth.numpy()
cells = [(tinted(scene.image, truth), "truth")]
for title, how in ways.items():
    mask = model.align(encoded, scene.names, **how).mask()
    print(f"{title:<18} mean IoU {mean_iou(mask, truth):.2f}")
    cells.append((tinted(scene.image, mask), title))
picture_grid([cells[:4], cells[4:]], side=200).show()

# %%
# One scene proves nothing: the benchmark compares methods on hundreds, with intervals.
