"""Compositional generation where the truth can be seen: is every object of the prompt there?

Pictures of prompt sets are drawn by every method from the same noise. A CLIP says how well picture
and prompt go together; in the lab's own sets its classifier says which objects are there and in
which colour. The generation table, and its twin with controls that only the lab can have.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image

from pixalign.backbones import Backbone
from pixalign.backbones.locations import LAB, lab_folder
from pixalign.bench.generation_study.rows import METHOD_ROWS, Row, rows_for
from pixalign.bench.metrics import clip_score
from pixalign.bench.scene_classifier import (
    PRESENT,
    SceneClassifier,
    colour_of,
    load_classifier,
    look,
    presence,
)
from pixalign.core.batching import BatchSize
from pixalign.core.checks import check_choice
from pixalign.core.files import make_folder, slug, write_bytes, write_json
from pixalign.core.progress import Progress
from pixalign.core.provenance import device_name, versions
from pixalign.diffusion.sampling import picture_size
from pixalign.generation.drawing import Drawing, Settings, Wish
from pixalign.generation.prompt_sets import PROMPT_SETS, SetPrompt, read_abc6k, read_attend_excite
from pixalign.generation.result import Generation
from pixalign.generation.run import draw
from pixalign.pictures.grid import in_columns, picture_grid
from pixalign.pictures.saving import encoded
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS
from pixalign.text.entities import entities_of, given_entities

SETS = ("lab-pairs", "lab-attributes", "lab-three")
SHOWN = 12  # prompts whose pictures are shown: the first ones
_TOGETHER = 96  # pictures in the making at once


def compose(
    model: str | None,
    out: Path,
    *,
    prompts: int,
    seeds: int,
    sets: Sequence[str] = SETS,
    files: Mapping[str, Path] = MappingProxyType({}),
    clip: str = "lab:clip",
    classifier: Path | None = None,
    controls: bool = True,
    steps: int = 50,
    guidance: float | None = None,
    device: str = "auto",
    dtype: str = "auto",
    show: bool = True,
) -> dict[str, Any]:
    """Draw the first ``prompts`` of each set by every method, ``seeds`` times, and judge them.

    Sets are names in `PROMPT_SETS`, or in ``files``, which are read. Objects are counted in the
    lab's sets only. Writes ``out``/NAME.json, in which finished rows are kept and not run again,
    and ``out``/NAME-SET.webp with the pictures of the first prompts.
    """
    wanted = {name: prompts_of(name, files)[:prompts] for name in sets}
    backbone = opened(model, device, dtype)
    judge = None
    if any(name in SETS for name in sets):
        folder = classifier or lab_folder("lab:classifier")
        judge = load_classifier(folder, str(backbone.device))
    name = slug((model or "lab:sd1").removeprefix(LAB))
    strength = backbone.guidance if guidance is None else guidance
    asked = {
        "model": backbone.name,
        "prompts": prompts,
        "seeds": seeds,
        "steps": steps,
        "guidance": strength,
        "dtype": backbone.record()["dtype"],
        "clip": clip,
        "files": {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in files.items()},
    }
    result = _kept(out / f"{name}.json", asked) or {
        **asked,
        "device": device_name(backbone.device),
        "versions": versions(),
        "sets": {},
    }
    for set_name, texts in wanted.items():
        done = result["sets"].setdefault(set_name, {})
        shown: dict[str, list[Image.Image]] = {}
        for row in rows_for(backbone, controls):
            if row.label in done:
                continue
            settings = Settings(steps, strength, row.strength)
            made, seconds = _drawn(backbone, texts, seeds, settings, row, show)
            scores = clip_score(
                [one.image for one in made],
                [one.prompt for one in made],
                model=clip,
                device=str(backbone.device),
            )
            done[row.label] = {
                "seconds": seconds,
                "clip": [round(float(score), 2) for score in scores.scores],
                "clip_model": scores.model,
                **(judged(made, judge) if judge is not None and set_name in SETS else {}),
            }
            shown[row.label] = [one.image for one in made[::seeds][:SHOWN]]
            write_json(make_folder(out) / f"{name}.json", result)
        if "plain" in shown:
            titles = [one.text for one in texts[:SHOWN]]
            labels = [row.label for row in METHOD_ROWS if row.label in shown]
            rows = in_columns(shown, labels)
            grid = picture_grid(rows, headings=labels, titles=titles, side=128)
            write_bytes(out / f"{name}-{set_name}.webp", encoded(grid, "webp"))
    return result


def prompts_of(name: str, files: Mapping[str, Path]) -> tuple[SetPrompt, ...]:
    """A set's prompts: generated, or read from the file of ABC-6K or of Attend-and-Excite."""
    if name in READERS:
        if name not in files:
            raise ValueError(f"the prompts of {name!r} are in a file; name it: --file {name}=PATH")
        return READERS[name](files[name])
    check_choice("set", name, (*PROMPT_SETS, *READERS))
    return PROMPT_SETS[name]()


def _all_groups(path: Path) -> tuple[SetPrompt, ...]:
    return tuple(one for group in read_attend_excite(path).values() for one in group)


READERS: dict[str, Callable[[Path], tuple[SetPrompt, ...]]] = {
    "abc6k": read_abc6k,
    "ae": _all_groups,
}


def _kept(path: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if {name: known.get(name) for name in asked} != dict(asked):
        raise ValueError(f"{str(path)!r} holds pictures of other settings; move it away")
    return known


def _drawn(
    backbone: Backbone,
    wanted: Sequence[SetPrompt],
    seeds: int,
    settings: Settings,
    row: Row,
    show: bool,
) -> tuple[list[Generation], float]:
    """Pictures of each prompt, all its seeds after each other, and the seconds of one picture."""
    wishes = [
        Wish(one.text, seeds * place + seed, named)
        for place, one in enumerate(wanted)
        for named in [given_entities(one.text, one.entities) or entities_of(one.text)]
        for seed in range(seeds)
    ]
    size, batch_size = picture_size(backbone, None), BatchSize("auto")
    made: list[Generation] = []
    _settled(backbone)
    begun = time.monotonic()
    with Progress(len(wishes) * settings.steps, row.label, show, "step") as bar:
        for first in range(0, len(wishes), _TOGETHER):
            part = wishes[first : first + _TOGETHER]
            drawing = Drawing(backbone, part, settings, size, batch_size)
            made += draw(drawing, row.method, bar)
    _settled(backbone)
    return made, round((time.monotonic() - begun) / len(wishes), 4)


def _settled(backbone: Backbone) -> None:
    if backbone.device.type == "cuda":
        torch.cuda.synchronize(backbone.device)


def judged(made: Sequence[Generation], judge: SceneClassifier) -> dict[str, list[str]]:
    """What is in each picture: ``found`` and ``coloured``, a digit an entity: "1" if it is there,
    and if it is there in the colour that the prompt says."""
    pixels = np.stack([np.asarray(one.image, dtype=np.float32) / 255 for one in made])
    classes, colours = look(judge, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    surely = presence(classes)
    found, coloured = [], []
    for picture, one in enumerate(made):
        wanted = [parsed(entity.text) for entity in one.entities]
        labels = torch.tensor([label for label, _ in wanted], device=classes.device)
        rows = torch.full_like(labels, picture)
        seen = colour_of(classes[rows], colours[rows], labels).tolist()
        there = (surely[picture, labels] >= PRESENT).tolist()
        found.append("".join(str(int(t)) for t in there))
        coloured.append(
            "".join(
                str(int(t and colour in (None, s)))
                for t, s, (_, colour) in zip(there, seen, wanted, strict=True)
            )
        )
    return {"found": found, "coloured": coloured}


def parsed(phrase: str) -> tuple[int, int | None]:
    """The class and the colour, if it says one, of "red palm tree"."""
    names = class_names()
    first, _, rest = phrase.partition(" ")
    if phrase not in names and first in COLOURS[1:] and rest in names:
        return names.index(rest), COLOURS.index(first)
    if phrase not in names:
        raise ValueError(f"{phrase!r} names no class of the lab")
    return names.index(phrase), None
