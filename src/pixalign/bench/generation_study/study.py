"""Compositional generation where the truth can be seen: is every object of the prompt there?

Pictures of prompt sets are drawn by every method from the same noise. A CLIP says how well picture
and prompt go together; in the lab's own sets its classifier says which objects are there and in
which colour. The generation table, and its twin with controls that only the lab can have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image

from pixalign.backbones.locations import EMBEDDED_NAME, LAB, located
from pixalign.bench.clock import Clock
from pixalign.bench.generation_study.rows import METHOD_ROWS, Row, rows_for
from pixalign.bench.metrics import clip_score
from pixalign.bench.scene_classifier import (
    PRESENT,
    SceneClassifier,
    colour_of,
    load_classifier,
    look_at,
    presence,
)
from pixalign.core.checks import check_choice
from pixalign.core.files import make_folder, slug, write_bytes, write_json
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.prompt_sets import PROMPT_SETS, SetPrompt, read_abc6k, read_attend_excite
from pixalign.generation.result import Generation
from pixalign.generation.run import draw_requests
from pixalign.pictures.grid import picture_grid
from pixalign.pictures.saving import encoded
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS
from pixalign.text.entities import entities_of, given_entities

SETS = ("lab-pairs", "lab-attributes", "lab-three")
SHOWN = 12  # prompts whose pictures are shown: the first ones


def run_generation_study(
    model: AlignmentModel,
    out: Path,
    *,
    prompts: int,
    seeds: int,
    clip: str,
    classifier: str | Path,
    sets: Sequence[str] = SETS,
    files: Mapping[str, Path] = MappingProxyType({}),
    controls: bool = True,
    steps: int = 50,
    guidance: float | None = None,
) -> dict[str, Any]:
    """Draw the first ``prompts`` of each set by every method, ``seeds`` times, and look at them.

    Sets are names in `PROMPT_SETS`, or in ``files``, which are read. ``clip`` names the model of
    the CLIP score. Objects are counted, by the ``classifier`` ("lab:classifier" or a folder), in
    the lab's sets only. Writes ``out``/NAME.json, in which finished rows are kept and not run
    again, and ``out``/NAME-SET.webp with the pictures of the first prompts.
    """
    texts = {name: prompts_of(name, files)[:prompts] for name in sets}
    device = str(model.backbone.device)
    scene_classifier = None
    if any(name in SETS for name in sets):
        scene_classifier = load_classifier(Path(located(classifier)), device)
    asked = {
        "model": model.name,
        "prompts": prompts,
        "seeds": seeds,
        "steps": steps,
        "guidance": model.backbone.guidance if guidance is None else guidance,
        "dtype": model.record()["dtype"],
        "clip": clip,
        "files": {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in files.items()},
    }
    path = out / f"{result_name(model)}.json"
    result = _kept(path, asked) or {
        **asked,
        "device": device_name(model.backbone.device),
        "versions": versions(),
        "sets": {},
    }
    for set_name, set_prompts in texts.items():
        done = result["sets"].setdefault(set_name, {})
        shown: dict[str, list[Image.Image]] = {}
        for row in rows_for(model.backbone, controls):
            if row.label in done:
                continue
            settings = GenerationSettings(steps, asked["guidance"], row.strength)
            made, seconds = _drawn(model, set_prompts, seeds, settings, row)
            images = [picture.image for picture in made]
            scores = clip_score(images, [p.prompt for p in made], model=clip, device=device)
            done[row.label] = {
                "seconds": seconds,
                "clip": [round(float(score), 2) for score in scores.scores],
                "clip_model": scores.model,
            }
            if scene_classifier is not None and set_name in SETS:
                done[row.label] |= objects_in(made, scene_classifier)
            shown[row.label] = images[::seeds][:SHOWN]
            make_folder(out)
            write_json(path, result)
        if "plain" in shown:
            titles = [prompt.text for prompt in set_prompts[:SHOWN]]
            labels = [row.label for row in METHOD_ROWS if row.label in shown]
            write_grid(out / f"{path.stem}-{set_name}.webp", shown, labels, titles)
    return result


def write_grid(
    path: Path,
    pictures: Mapping[str, Sequence[Image.Image]],
    labels: Sequence[str],
    titles: Sequence[str],
) -> None:
    """Rows of one picture of each label, under the row's title; equally many of each label."""
    rows = list(zip(*(pictures[label] for label in labels), strict=True))
    grid = picture_grid(rows, headings=labels, titles=titles, side=128)
    write_bytes(path, encoded(grid, "webp"))


def result_name(model: AlignmentModel) -> str:
    """What a study calls the files of a model: "sd1" for the embedded one, "sdxl" for lab:sdxl."""
    name = f"{LAB}sd1" if model.name == EMBEDDED_NAME else model.name
    return slug(name.removeprefix(LAB))


def prompts_of(name: str, files: Mapping[str, Path]) -> tuple[SetPrompt, ...]:
    """A set's prompts: generated, or read from the file of ABC-6K or of Attend-and-Excite."""
    if name in READERS:
        if name not in files:
            raise ValueError(f"the prompts of {name!r} are in a file; name it: --file {name}=PATH")
        return READERS[name](files[name])
    check_choice("set", name, (*PROMPT_SETS, *READERS))
    return PROMPT_SETS[name]()


READERS: dict[str, Callable[[Path], tuple[SetPrompt, ...]]] = {
    "abc6k": read_abc6k,
    "ae": lambda path: tuple(chain.from_iterable(read_attend_excite(path).values())),
}


def _kept(path: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if {name: known.get(name) for name in asked} != dict(asked):
        raise ValueError(f"{str(path)!r} holds pictures of other settings; move it away")
    return known


def _drawn(
    model: AlignmentModel,
    prompts: Sequence[SetPrompt],
    seeds: int,
    settings: GenerationSettings,
    row: Row,
) -> tuple[list[Generation], float]:
    """Pictures of each prompt, all its seeds after each other, and the seconds of one picture."""
    requests = [
        GenerationRequest(prompt.text, seeds * number + seed, entities)
        for number, prompt in enumerate(prompts)
        for entities in [given_entities(prompt.text, prompt.entities) or entities_of(prompt.text)]
        for seed in range(seeds)
    ]
    clock = Clock(model.backbone.device)
    with clock.charged({row.label: 1 / len(requests)}):
        made = draw_requests(model, requests, settings, row.method, label=row.label)
    return made, round(clock.rows[row.label], 4)


def objects_in(made: Sequence[Generation], classifier: SceneClassifier) -> dict[str, list[str]]:
    """What is in each picture: ``found`` and ``coloured``, a digit an entity: "1" if it is there,
    and if it is there in the colour that the prompt says."""
    classes, colours = look_at(classifier, [picture.image for picture in made])
    likely = presence(classes)
    present, coloured = [], []
    for number, picture in enumerate(made):
        asked = [parsed(entity.text) for entity in picture.entities]
        labels = torch.tensor([label for label, _ in asked], device=classes.device)
        rows = torch.full_like(labels, number)
        seen = colour_of(classes[rows], colours[rows], labels).tolist()
        there = (likely[number, labels] >= PRESENT).tolist()
        right = [
            is_there and colour in (None, shade)
            for is_there, shade, (_, colour) in zip(there, seen, asked, strict=True)
        ]
        present.append("".join(str(int(is_there)) for is_there in there))
        coloured.append("".join(str(int(is_right)) for is_right in right))
    return {"found": present, "coloured": coloured}


def parsed(phrase: str) -> tuple[int, int | None]:
    """The class and the colour, if it says one, of "red palm tree"."""
    names = class_names()
    first, _, rest = phrase.partition(" ")
    if phrase not in names and first in COLOURS[1:] and rest in names:
        return names.index(rest), COLOURS.index(first)
    if phrase not in names:
        raise ValueError(f"{phrase!r} names no class of the lab")
    return names.index(phrase), None
