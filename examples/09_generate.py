"""
Nothing is forgotten
====================

Of several things that a prompt names, a model often draws some and forgets others. Weights by the
likelihood bring them back, often.
"""

import pixalign as pa
from pixalign.pictures.grid import picture_grid

model = pa.load("lab:sd2")
prompt, entities = "a photo of dog, palm tree", ["dog", "palm tree"]

# %%
# The same noise, drawn plainly and with weights.

plain = model.generate(prompt, method="plain", seed=0, count=4, steps=20)
made = model.generate(prompt, entities=entities, seed=0, count=4, steps=20)
rows = [[picture.image for picture in plain], [picture.image for picture in made]]
picture_grid(rows, titles=("plain", "with weights"), side=160).show()

# %%
# At each step the neglected entity gets the larger weight.

for step, weights in enumerate(made[0].weights):
    if step % 5 == 0:
        print(step, dict(zip(entities, weights.round(2).tolist(), strict=True)))

# %%
# Four pictures prove nothing. On 210 prompts this model draws 9 to 13 points more of the named
# objects; one that forgets little gains little. "Compositional generation" has all figures.
