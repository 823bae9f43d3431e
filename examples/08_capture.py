"""
Attention while a picture is drawn
==================================

Where does a pipeline put its words, step by step? ``capture`` records it and changes nothing.
"""

import numpy as np
import torch

import pixalign as pa
from pixalign.pictures.drawing import heat
from pixalign.pictures.grid import picture_grid

model = pa.load()
prompt = "a photo of dog, taco"


def draw():
    """The pipeline as diffusers has it."""
    generator = torch.Generator().manual_seed(4)
    return model.pipe(prompt, num_inference_steps=20, guidance_scale=6, generator=generator).images[
        0
    ]


with model.capture(words=["dog", "taco"]) as maps:
    drawn = draw()

# %%
# Without ``capture``, exactly the same picture comes out.

print(np.array_equal(np.asarray(drawn), np.asarray(draw())))

# %%
# The maps of every step: float32 [steps, images, h, w].

print(maps["dog"].shape)
rows = []
for word in maps.words:
    steps = maps[word][:, 0]
    shown = [heat((steps[i] / steps.max()).numpy()) for i in (0, 4, 9, 14, 19)]
    rows.append([drawn, *shown])
headings = ("drawn", "step 1", "5", "10", "15", "20")
picture_grid(rows, headings=headings, titles=maps.words, side=128).show()
