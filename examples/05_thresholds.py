"""
Thresholds and probabilities
============================

A mask depends on one threshold. You can change it later without running the network again.
"""

import numpy as np

import pixalign as pa
from pixalign.pictures.drawing import heat, tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 5, 1), 128)[0]
model = pa.load("lab:sd2")
result = model.align(scene.image, scene.names)
truth = scene.truth.numpy()

# %%
# Low thresholds give generous masks, high ones strict masks.

cells = [(tinted(scene.image, truth), "truth")]
for threshold in (0.1, 0.3, 0.5, 0.7, 0.9):
    mask = result.mask(threshold)
    right = (mask == truth)[truth > 0].mean()
    wrong = (mask > 0)[truth == 0].mean()
    print(f"{threshold}: {right:.0%} of the objects right, {wrong:.1%} of the background taken")
    cells.append((tinted(scene.image, mask), f"threshold {threshold}"))
picture_grid([cells[:3], cells[3:]], side=200).show()

# %%
# Probabilities say where the mask is unsure: here at the borders.

probabilities = result.probs()
print(probabilities.shape, np.allclose(probabilities.sum(0), 1, atol=1e-4))
certainty = probabilities.max(0)
cells = [(scene.image, "picture"), (heat(1 - certainty), "unsure")]
picture_grid([cells], side=220).show()
