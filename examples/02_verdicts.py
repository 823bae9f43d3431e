"""
How far to believe it
=====================

A heatmap looks the same whether the model knows the class or guesses. The verdicts say which, and
can leave out names that are not in the picture.
"""

import pixalign as pa
from pixalign.pictures.drawing import tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 5, 1), 128)[0]
model = pa.load("lab:sd2")
encoded = model.encode(scene.image)
names = [*scene.names, "taco", "dog"]
print("there:", scene.names)

# %%
# Ask for what is there, and for two things that are not.

result = model.align(encoded, names)
for name, about in zip(names, result.trust, strict=True):
    print(f"{name:<10} {about!s:<25} standing {about.numbers['standing']:.2%}")

# %%
# ``absent="drop"`` leaves the maps of absent classes empty. They keep their number in the mask.

dropped = model.align(encoded, names, absent="drop")
cells = [(scene.image, "picture")]
for title, masked in (("all kept", result), ("absent dropped", dropped)):
    cells.append((tinted(scene.image, masked.mask()), title))
picture_grid([cells], side=220).show()
