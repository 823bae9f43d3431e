"""
First masks
===========

Which pixels of a picture belong to which words? Draw a scene whose every pixel is known, ask the
embedded model, and compare its mask with the truth.
"""

import pixalign as pa
from pixalign.pictures.drawing import heat, tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 0, 1), 128)[0]
print(scene.names)

# %%
# A model is loaded once. Without a name it is the small one that comes with the package.

model = pa.load()
result = model.align(scene.image, scene.names)

# %%
# The result holds a heatmap for each class, as large as the picture, in [0, 1].

print(result.heatmaps.shape, result.heatmaps.min(), result.heatmaps.max())
cells = [(scene.image, "picture")]
cells += [(heat(heatmap), name) for name, heatmap in zip(scene.names, result.heatmaps, strict=True)]
picture_grid([cells], side=200).show()

# %%
# The mask gives each pixel to its highest heatmap, or to the background (0) where none reaches the
# threshold.

mask, truth = result.mask(), scene.truth.numpy()
for label, name in enumerate(scene.names, start=1):
    both = ((mask == label) & (truth == label)).sum()
    either = ((mask == label) | (truth == label)).sum()
    print(f"{name:<10} IoU {both / either:.2f}")
cells = [(tinted(scene.image, truth), "truth"), (tinted(scene.image, mask), "mask")]
picture_grid([cells], side=200).show()
