"""
Nothing is forgotten
====================

When a prompt names several things, a model often draws some and forgets others. Weights from the
likelihood often bring them back.
"""

import pixalign as pa
from pixalign.pictures.grid import picture_grid

model = pa.load()
prompt, entities = "a photo of dog, palm tree, taco", ["dog", "palm tree", "taco"]

# %%
# The same noise, drawn plainly and with weights.

plain = model.generate(prompt, method="plain", seed=0, count=4, steps=20)
made = model.generate(prompt, entities=entities, seed=0, count=4, steps=20, strength=1.1)
rows = [[picture.image for picture in plain], [picture.image for picture in made]]
picture_grid(rows, titles=("plain", "with weights"), side=160).show()

# %%
# At each step the neglected entities get larger weights.

for step, weights in enumerate(made[0].weights):
    if step % 5 == 0:
        named = zip(entities, weights, strict=True)
        print(f"step {step:>2}: " + ", ".join(f"{name} {weight:.2f}" for name, weight in named))

# %%
# Four pictures prove nothing. On 210 prompts, this model forgets little and gains little, while
# ``lab:sd2`` draws 9 to 13 points more of the named objects. "Compositional generation" has all
# figures.
