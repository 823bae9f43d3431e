"""
Phrases and captions
====================

Describe a class in your own words, or give the model a caption instead of its usual prompt.
"""

import pixalign as pa
from pixalign.pictures.drawing import tinted
from pixalign.pictures.grid import picture_grid
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

scene = labelled_scenes(sample_scenes("test", 7, 1), 128)[0]
model = pa.load("lab:sd2")
encoded = model.encode(scene.image)
print(scene.names)

# %%
# By default the model reads "a photo of c1, c2, …", with the classes sorted.

plain = model.align(encoded, scene.names)
print(plain.provenance["prompts"])

# %%
# ``Phrase("cactus", "small green cactus")`` is reported as "cactus"; the model reads the phrase.

classes = [
    pa.Phrase(name, f"small green {name}") if name == "cactus" else name for name in scene.names
]
described = model.align(encoded, classes)
print(described.provenance["prompts"])

# %%
# A caption replaces the prompt. It must contain every class.

caption = "a photo of " + ", ".join(reversed(scene.names))
captioned = model.align(encoded, scene.names, caption=caption)
print(captioned.provenance["prompts"])

# %%
# The three masks:

cells = [
    (tinted(scene.image, result.mask()), title)
    for title, result in (
        ("names", plain),
        ("one described", described),
        ("own caption", captioned),
    )
]
picture_grid([cells], side=220).show()
