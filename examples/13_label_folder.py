"""
A folder becomes a dataset
==========================

Label all pictures of a folder, read the labels again, and see which pictures a person should see
first.
"""

import json
import tempfile
from pathlib import Path

import pixalign as pa
from pixalign.pictures.drawing import tinted
from pixalign.pictures.grid import picture_grid
from pixalign.pictures.reading import read_image
from pixalign.scenes.labelled import labelled_scenes
from pixalign.scenes.sample import sample_scenes

place = Path(tempfile.mkdtemp())
photos, names = place / "photos", set()
photos.mkdir()
for scene in labelled_scenes(sample_scenes("test", 4, 4), 128, 4):
    scene.image.save(photos / f"scene-{scene.number}.png")
    names.update(scene.names)
print(sorted(names))

# %%
# One call does it. If a folder is half done, the same call continues.

model = pa.load()
run = model.label(photos, sorted(names), place / "labels", formats=["coco"], absent="drop", queue=2)
print({key: run.summary[key] for key in ("pictures", "objects", "in_doubt")})

# %%
# Read again, one picture at a time:

cells = []
for picture in run.finished:
    found = [run.finished.classes[segment.label - 1] for segment in picture.segments]
    cells.append((tinted(read_image(picture.path), picture.mask), ", ".join(found)))
picture_grid([cells], side=190, lines=3).show()

# %%
# Annotation tools and training code read these files.

(annotations,) = (place / "labels" / "coco").rglob("*.json")
content = json.loads(annotations.read_text())
print(annotations.name, {key: len(value) for key, value in content.items() if key != "info"})
