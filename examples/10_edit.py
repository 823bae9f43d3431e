"""
Change one thing
================

Say what a picture shows and what it should show. pixalign finds the noise that leads to the
picture, and draws it again with the new words.
"""

import pixalign as pa
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 0, 1), 128)[0]
model = pa.load()
source = "a photo of " + ", ".join(scene.names)
target = source.replace("taco", "pizza")
print(source, "->", target)

# %%
# Null-text inversion finds, for each step, a text that leads back to the picture. This is most of
# the work; ``inversion="ddim"`` leaves it out and reconstructs the picture less exactly.

made = model.edit(scene.image, source, target, entities=scene.names, steps=12, blend="heatmap")
print(f"reconstruction {made.figures['psnr']:.1f} dB")
made.compare().show()
