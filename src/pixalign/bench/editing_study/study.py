"""Editing where the truth is known: one object of a scene becomes another, and only there.

Test scenes are inverted; in the caption one object's name is replaced by another class. The lab's
classifier says whether the new object stands where the old one stood and whether the others are
still there; outside the old object's mask the picture should not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pixalign.backbones.locations import LAB, lab_folder, model_name
from pixalign.bench.scene_classifier import SceneClassifier, load_classifier, look, recognised
from pixalign.core.checks import check_choice
from pixalign.core.files import make_folder, slug, write_bytes, write_json
from pixalign.core.protocols import AlignmentModel as Aligner
from pixalign.core.provenance import device_name, versions
from pixalign.diffusion.sampling import to_pictures
from pixalign.editing.cache import cached_inversions
from pixalign.editing.drawing import EditSettings
from pixalign.editing.inversion import Inversion, InversionSettings
from pixalign.editing.preparing import Task
from pixalign.editing.result import Edit
from pixalign.editing.run import edit_many
from pixalign.pictures.grid import in_columns, picture_grid
from pixalign.pictures.saving import encoded
from pixalign.scenes.atlas import class_names
from pixalign.scenes.draw import draw_scenes
from pixalign.scenes.labelled import LabelledScene, labelled_scenes, native_side

SHOWN = 12  # edits whose pictures are shown: the first ones
LEAST_AREA, LEAST_VISIBLE = 0.04, 0.7  # of the object that is to change
# By label: whose heatmap is written, and what keeps the rest as it is.
ROWS: dict[str, tuple[str, str | None]] = {
    "ptp": ("ptp", "attention"),
    "diffsegmenter": ("diffsegmenter", "attention"),
    "elbo": ("elbo", "attention"),
    "ptp, no blend": ("ptp", None),
    "diffsegmenter, no blend": ("diffsegmenter", None),
    "elbo, no blend": ("elbo", None),
    "elbo, heatmap as blend": ("elbo", "heatmap"),
}


@dataclass(frozen=True, eq=False)
class Trial:
    """An edit of a scene: ``old`` becomes ``new``, both class indices.

    ``masks`` bool [1 + others, H, W] are of the old object and then of the ``others``.
    """

    picture: Image.Image
    source: str
    target: str
    old: int
    new: int
    others: tuple[int, ...]
    masks: np.ndarray

    @property
    def task(self) -> Task:
        """What the editor is asked."""
        names = class_names()
        entities = tuple(names[label] for label in (self.old, *self.others))
        return Task(self.source, self.target, self.picture, entities=entities)


def trials(count: int, size: int) -> list[Trial]:
    """The first ``count`` edits of test scenes with 2, 3 and 4 objects in turn.

    In each scene the first named object changes that is large enough and hidden little enough;
    scenes without one are passed over.
    """
    scenes = draw_scenes("test", 6 * count)
    each = len(scenes) // 3
    found: list[Trial] = []
    for start in range(0, each, 16):
        parts = [
            labelled_scenes(
                scenes[n * each + start : n * each + min(start + 16, each)], size, "cpu"
            )
            for n in range(3)
        ]
        for place, in_turn in enumerate(zip(*parts, strict=True)):
            made = [trial(subject, start + place) for subject in in_turn]
            found += [one for one in made if one is not None]
        if len(found) >= count:
            break
    return found[:count]


def trial(subject: LabelledScene, seed: int) -> Trial | None:
    """One object of a scene becomes a class that is not there, drawn from the seed."""
    seen = zip(subject.area, subject.visible, strict=True)
    fit = [p for p, (a, v) in enumerate(seen) if a >= LEAST_AREA and v >= LEAST_VISIBLE]
    if not fit or len(subject.labels) < 2:
        return None
    names, said, old = class_names(), subject.names, subject.labels[fit[0]]
    absent = [label for label in range(len(names)) if label not in subject.labels]
    new = int(np.random.default_rng(seed).choice(absent))
    instead = [names[new] if name == names[old] else name for name in said]
    others = tuple(label for label in subject.labels if label != old)
    places = [subject.labels.index(label) + 1 for label in (old, *others)]
    return Trial(
        picture=to_pictures(subject.picture[None])[0],
        source=f"a photo of {', '.join(said)}",
        target=f"a photo of {', '.join(instead)}",
        old=old,
        new=new,
        others=others,
        masks=np.stack([(subject.truth == place).numpy() for place in places]),
    )


def retouch(
    model: str | None,
    out: Path,
    *,
    count: int,
    rows: Sequence[str] = tuple(ROWS),
    classifier: Path | None = None,
    steps: int = 50,
    guidance: float | None = None,
    cache: Path | None = None,
    device: str = "auto",
    show: bool = True,
) -> dict[str, Any]:
    """Edit ``count`` scenes by every method and judge the pictures.

    Writes ``out``/NAME.json, row by row, and ``out``/NAME.webp with the pictures of the first
    edits. Inversions, which take longest, are kept in the folder ``cache`` (by default beside the
    results), so that a stopped run goes on with what is missing.
    """
    for row in rows:
        check_choice("row", row, tuple(ROWS))
    aligner = Aligner.from_pretrained(model, device=device, dtype="float32", progress=show)
    backbone = aligner.backbone
    judge = load_classifier(classifier or lab_folder("lab:classifier"), str(backbone.device))
    asked = trials(count, native_side(aligner.backbone))
    tasks, kept = [trial.task for trial in asked], cache or out / "inversions"
    strength = backbone.guidance if guidance is None else guidance
    result: dict[str, Any] = {
        "model": model_name(model),
        "edits": len(asked),
        "steps": steps,
        "guidance": strength,
        "device": device_name(backbone.device),
        "versions": versions(),
        "inversions": {},
        "rows": {},
    }
    shown = {"source": [trial.picture for trial in asked[:SHOWN]]}
    path = make_folder(out) / f"{slug((model or 'lab:sd1').removeprefix(LAB))}.json"
    for label in rows:
        method, blend = ROWS[label]
        settings = EditSettings(method=method, steps=steps, guidance=strength, blend=blend)
        edits = edit_many(tasks, aligner, settings, cache=kept)
        if not result["inversions"]:
            result["inversions"]["null-text"] = _figures(edits)
            shown["reconstruction"] = [edit.reconstruction for edit in edits[:SHOWN]]
        result["rows"][label] = judged(edits, asked, judge)
        shown[label] = [edit.edited for edit in edits[:SHOWN]]
        write_json(path, result)
    plain = cached_inversions(
        kept,
        backbone,
        [trial.picture for trial in asked],
        [trial.source for trial in asked],
        InversionSettings("ddim", steps, strength),
        model=aligner.name,
        batch_size=aligner.batch_size,
        progress=show,
    )
    result["inversions"]["ddim"] = _figures(plain)
    write_json(path, result)
    columns = ["source", "reconstruction", *(label for label in rows if "," not in label)]
    names = class_names()
    titles = [f"{t.source}: {names[t.old]} to {names[t.new]}" for t in asked[:SHOWN]]
    grid = picture_grid(in_columns(shown, columns), headings=columns, titles=titles, side=128)
    write_bytes(path.with_suffix(".webp"), encoded(grid, "webp"))
    return result


def _figures(made: Sequence[Edit | Inversion]) -> dict[str, list[float]]:
    """Each reconstruction's PSNR in dB, by name."""
    names = ("psnr", "psnr_vae", "vae")
    return {name: [round(one.figures[name], 2) for one in made] for name in names}


def judged(edits: Sequence[Edit], asked: Sequence[Trial], judge: SceneClassifier) -> dict[str, Any]:
    """For each edit: is the new class recognised in the old object's mask, is the old one not, the
    share of the other objects that are recognised in theirs, and how much the picture changed
    outside the old object's mask: PSNR in dB from the picture and from its reconstruction."""
    pixels = np.stack([np.asarray(edit.edited, dtype=np.float32) / 255 for edit in edits])
    classes, _ = look(judge, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    found: dict[str, Any] = {"new": "", "gone": "", "kept": [], "outside": [], "moved": []}
    for row, (edit, trial) in enumerate(zip(edits, asked, strict=True)):
        labels = [trial.new, trial.old, *trial.others]
        masks = trial.masks[[0, 0, *range(1, len(trial.masks))]]
        there = recognised(
            classes[row : row + 1].expand(len(labels), -1, -1, -1),
            torch.from_numpy(masks).to(classes.device),
            torch.tensor(labels, device=classes.device),
        ).tolist()
        found["new"] += str(int(there[0]))
        found["gone"] += str(int(not there[1]))
        found["kept"].append(round(sum(there[2:]) / len(there[2:]), 3))
        outside = ~trial.masks[0]
        for name, other in (("outside", edit.source), ("moved", edit.reconstruction)):
            error = pixels[row] - np.asarray(other, dtype=np.float32) / 255
            mean = float(np.square(error[outside]).mean())
            found[name].append(round(-10 * float(np.log10(max(mean, 1e-10))), 2))
    return found
