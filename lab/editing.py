"""Editing where the truth is known: one object of a scene becomes another, and only there.

Test scenes are inverted; in the caption one object's name is replaced by another class. The lab's
classifier says whether the new object stands where the old one stood and whether the others are
still there; outside the old object's mask the picture should not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lab.classifier import SceneClassifier, load_classifier, look_at, recognised
from pixalign.backbones.locations import located
from pixalign.bench.generation_study import (
    Figure,
    compared,
    resampled,
    result_name,
    spread,
    with_interval,
    write_grid,
)
from pixalign.core.checks import check_choice
from pixalign.core.files import make_folder, write_json
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.editing import Edit
from pixalign.editing.cache import InversionCache, inversions_of
from pixalign.editing.inversion import InversionSettings, psnr, reconstruct, reconstruction_figures
from pixalign.editing.run import edit as edit_pictures
from pixalign.pictures.reading import to_pixels
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
    "dense": ("dense", "attention"),
    "dense, heatmap as blend": ("dense", "heatmap"),
}


@dataclass(frozen=True, eq=False)
class Trial:
    """An edit of a scene: the first of its ``labels`` becomes ``new``, all class indices.

    ``masks`` bool [labels, H, W] show where each class stands.
    """

    picture: Image.Image
    source: str
    target: str
    labels: tuple[int, ...]
    new: int
    masks: np.ndarray

    @property
    def entities(self) -> list[str]:
        """What the source prompt names, the old object first."""
        return [class_names()[label] for label in self.labels]


def trials(count: int, size: int) -> list[Trial]:
    """The first ``count`` edits of test scenes with 2, 3 and 4 objects in turn.

    In each scene the first named object changes that is large enough and hidden little enough;
    scenes without one are passed over.
    """
    scenes, each = draw_scenes("test", 6 * count), 2 * count
    by_objects = [scenes[first : first + each] for first in range(0, 3 * each, each)]
    chosen: list[Trial] = []
    for start in range(0, each, 16):
        parts = [labelled_scenes(part[start : start + 16], size) for part in by_objects]
        for number, in_turn in enumerate(zip(*parts, strict=True), start):
            chosen += filter(None, (trial(scene, number) for scene in in_turn))
        if len(chosen) >= count:
            break
    return chosen[:count]


def trial(subject: LabelledScene, seed: int) -> Trial | None:
    """One object of a scene becomes a class that is not there, drawn from the seed."""
    seen = zip(subject.labels, subject.area, subject.visible, strict=True)
    fit = [label for label, a, v in seen if a >= LEAST_AREA and v >= LEAST_VISIBLE]
    if not fit or len(subject.labels) < 2:
        return None
    names, old = class_names(), fit[0]
    absent = [label for label in range(len(names)) if label not in subject.labels]
    new = int(np.random.default_rng(seed).choice(absent))
    labels = (old, *(label for label in subject.labels if label != old))
    instead = [names[new if label == old else label] for label in subject.labels]
    return Trial(
        picture=subject.image,
        source=f"a photo of {', '.join(subject.names)}",
        target=f"a photo of {', '.join(instead)}",
        labels=labels,
        new=new,
        masks=np.stack([subject.truth == 1 + subject.labels.index(label) for label in labels]),
    )


def run_editing_study(
    model: AlignmentModel,
    out: Path,
    *,
    count: int,
    classifier: str | Path = "lab:classifier",
    rows: Sequence[str] = tuple(ROWS),
    steps: int = 50,
) -> dict[str, Any]:
    """Edit ``count`` scenes by every method, and look at them with a ``classifier``
    ("lab:classifier" or a folder).

    Writes ``out``/NAME.json, row by row, and ``out``/NAME.webp with the pictures of the first
    edits. Inversions, which take longest, are kept in ``out``/inversions, so that a stopped run
    goes on with what is missing.
    """
    for row in rows:
        check_choice("row", row, tuple(ROWS))
    backbone = model.backbone
    scene_classifier = load_classifier(Path(located(classifier)), str(backbone.device))
    asked = trials(count, native_side(backbone))
    cache = InversionCache(out / "inversions", max_bytes=None)
    result: dict[str, Any] = {
        "model": model.name,
        "edits": len(asked),
        "steps": steps,
        "guidance": backbone.guidance,
        "device": device_name(backbone.device),
        "versions": versions(),
        "inversions": {},
        "rows": {},
    }
    pictures, sources = [trial.picture for trial in asked], [trial.source for trial in asked]
    common: dict[str, Any] = {"steps": steps, "cache": cache}
    common["entities"] = [trial.entities for trial in asked]
    targets, shown = [trial.target for trial in asked], {"source": pictures[:SHOWN]}
    path = make_folder(out) / f"{result_name(model)}.json"
    for label in rows:
        method, blend = ROWS[label]
        edits: list[Edit] = edit_pictures(
            model, pictures, sources, targets, method=method, blend=blend, **common
        )
        if not result["inversions"]:
            result["inversions"]["null-text"] = _by_name([edit.figures for edit in edits])
            shown["reconstruction"] = [edit.reconstruction for edit in edits[:SHOWN]]
        result["rows"][label] = changes_in(edits, asked, scene_classifier)
        if blend == "attention":
            shown[label] = [edit.edited for edit in edits[:SHOWN]]
        write_json(path, result)
    how = InversionSettings("ddim", steps, backbone.guidance)
    plain = inversions_of(model, pictures, sources, how, cache)
    again = reconstruct(model, plain, sources, how)
    pixels = torch.cat([to_pixels(picture, picture.size[::-1]) for picture in pictures])
    result["inversions"]["ddim"] = _by_name(reconstruction_figures(backbone, pixels, again))
    write_json(path, result)
    titles = [f"{t.source}: {t.entities[0]} to {class_names()[t.new]}" for t in asked[:SHOWN]]
    write_grid(path.with_suffix(".webp"), shown, titles)
    return result


def _by_name(figures: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Each reconstruction's PSNR in dB, by name."""
    return {name: [round(each[name], 2) for each in figures] for name in figures[0]}


def changes_in(
    edits: Sequence[Edit], asked: Sequence[Trial], classifier: SceneClassifier
) -> dict[str, Any]:
    """For each edit: is the new class recognised in the old object's mask, is the old one not, the
    share of the other objects that are recognised in theirs, and how much the picture changed
    outside the old object's mask: PSNR in dB from the picture and from its reconstruction."""
    classes, _ = look_at(classifier, [edit.edited for edit in edits])
    seen: dict[str, Any] = {"new": "", "gone": "", "kept": [], "outside": [], "moved": []}
    for row, (edit, trial) in enumerate(zip(edits, asked, strict=True)):
        masks = torch.from_numpy(trial.masks).to(classes.device)
        new, old, *others = recognised(
            classes[row].expand(1 + len(masks), -1, -1, -1),
            torch.cat([masks[:1], masks]),
            torch.tensor([trial.new, *trial.labels], device=classes.device),
        ).tolist()
        seen["new"] += str(int(new))
        seen["gone"] += str(int(not old))
        seen["kept"].append(round(sum(others) / len(others), 3))
        edited, source, again = (
            torch.from_numpy(np.asarray(picture)[~trial.masks[0]] / 255)[None]
            for picture in (edit.edited, edit.source, edit.reconstruction)
        )
        for name, other in (("outside", source), ("moved", again)):
            seen[name].append(round(min(float(psnr(edited, other)), 100.0), 2))
    return seen


# ---- figures ----

# In percent, and the last two in dB.
EDIT_FIGURES: dict[str, Figure] = {
    "new": lambda row: [100.0 * int(digit) for digit in row["new"]],
    "gone": lambda row: [100.0 * int(digit) for digit in row["gone"]],
    "kept": lambda row: [100 * share for share in row["kept"]],
    "outside": lambda row: row["outside"],
    "moved": lambda row: row["moved"],
}


def summarise_edits(result: Mapping[str, Any], draws: int = 1000) -> dict[str, Any]:
    """By row each figure's mean over the edits with its 95 % interval, and its paired difference
    to Prompt-to-Prompt with the same blend, and that of "dense" to "elbo"; by inversion the mean
    PSNR and the lowest."""
    shares = resampled(result["edits"], draws)
    rows = {
        label: {name: torch.tensor(figure(row)).double() for name, figure in EDIT_FIGURES.items()}
        for label, row in result["rows"].items()
    }
    bases = {label: "ptp, no blend" if label.endswith("no blend") else "ptp" for label in rows}
    found = {
        label: compared(values, rows[bases[label]], "ptp", shares) for label, values in rows.items()
    }
    for label, entry in found.items():
        twin = label.replace("dense", "elbo")
        if twin != label and twin in rows:
            entry |= compared(rows[label], rows[twin], "elbo", shares)
    return {
        "rows": found,
        "inversions": {
            name: {
                key: {**with_interval(torch.tensor(v).double(), shares), "lowest": min(v)}
                for key, v in figures.items()
            }
            for name, figures in result["inversions"].items()
        },
    }


def format_edits(result: Mapping[str, Any]) -> str:
    """What the edits did, by method."""
    summary = summarise_edits(result)
    lines = [f"{'':<26}" + "".join(f"{name:>24}" for name in EDIT_FIGURES)]
    for label, row in summary["rows"].items():
        cells = [f"{spread(row[name], '.1f'):>24}" for name in EDIT_FIGURES]
        lines.append(f"{label:<26}" + "".join(cells))
    for name, figures in summary["inversions"].items():
        lines.append(f"{name}: {figures['psnr_vae']['value']:.1f} dB from the VAE's own picture")
    return "\n".join(lines)
