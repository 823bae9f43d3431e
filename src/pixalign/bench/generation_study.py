"""Compositional generation where the truth can be seen: is every object of the prompt there?

Pictures of prompt sets are drawn by every method from the same noise. A CLIP says how well picture
and prompt go together; in the lab's own sets its classifier says which objects are there and in
which colour. The generation table, and its twin with controls that only the lab can have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.backbones.locations import EMBEDDED_NAME, LAB, located
from pixalign.bench.clock import Clock
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
from pixalign.generation.methods import Elbo, GenerationMethod
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.prompt_sets import PROMPT_SETS, SetPrompt, read_abc6k, read_attend_excite
from pixalign.generation.result import Generation
from pixalign.generation.run import GENERATION_METHODS, draw_requests
from pixalign.pictures.grid import picture_grid
from pixalign.pictures.saving import encoded
from pixalign.scenes.atlas import class_names
from pixalign.scenes.sample import COLOURS
from pixalign.text.entities import entities_of, given_entities

SETS = ("lab-pairs", "lab-attributes", "lab-three")
SHOWN = 12  # prompts whose pictures are shown: the first ones


class Constant(Elbo):
    """A control: every entity has the largest weight at every step."""

    name = "constant"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The strength itself."""
        return torch.full_like(errors, self.plan.settings.strength)


class Shuffled(Elbo):
    """A control: the method's own weights, given to the entities in random order."""

    name = "random order"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """Drawn anew at each step, from the picture's seed and the step."""
        seed = 1_000_003 * self.plan.requests[picture].seed + index
        order = torch.randperm(len(errors), generator=torch.Generator().manual_seed(seed))
        return super().weigh(errors, picture, index)[order]


class Reversed(Elbo):
    """A control: the entity that the step explains best weighs most."""

    name = "reversed"

    def weigh(self, errors: Tensor, picture: int, index: int) -> Tensor:
        """The weights of the negated differences."""
        return super().weigh(-errors, picture, index)


Row = tuple[type[GenerationMethod], float]  # a method and its strength
METHOD_ROWS: dict[str, Row] = {
    name: (GENERATION_METHODS[name], 1.2) for name in ("plain", "attend-excite", "syngen", "elbo")
}
CONTROL_ROWS: dict[str, Row] = {
    **{kind.name: (kind, 1.2) for kind in (Constant, Shuffled, Reversed)},
    **{f"1/γ = {strength:g}": (Elbo, strength) for strength in (1.1, 1.5, 2.0)},
}


def rows_for(backbone: Backbone, controls: bool) -> dict[str, Row]:
    """Plain and the paper's method, those of the others that know the family, and controls."""
    known = {}
    for label, row in (METHOD_ROWS | (CONTROL_ROWS if controls else {})).items():
        with suppress(ValueError):
            row[0].check(backbone)
            known[label] = row
    return known


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
        "guidance": model.backbone.guidance,
        "dtype": model.record()["dtype"],
        "clip": clip,
        "files": {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in files.items()},
    }
    about = {"device": device_name(model.backbone.device), "versions": versions(), "sets": {}}
    path = make_folder(out) / f"{result_name(model)}.json"
    result: dict[str, Any] = asked | about
    if path.is_file():
        result = json.loads(path.read_text(encoding="utf-8"))
        if result | asked != result:
            raise ValueError(f"{str(path)!r} holds pictures of other settings; move it away")
    for set_name, set_prompts in texts.items():
        done = result["sets"].setdefault(set_name, {})
        shown: dict[str, list[Image.Image]] = {}
        for label, (method, strength) in rows_for(model.backbone, controls).items():
            if label in done:
                continue
            requests = _requests(set_prompts, seeds)
            settings = GenerationSettings(steps, asked["guidance"], strength)
            clock = Clock(model.backbone.device)
            with clock.charged({label: 1 / len(requests)}):
                made = draw_requests(model, requests, settings, method, label=label)
            images = [picture.image for picture in made]
            scores = clip_score(images, [p.prompt for p in made], model=clip, device=device)
            done[label] = {
                "seconds": round(clock.rows[label], 4),
                "clip": [round(float(score), 2) for score in scores.scores],
                "clip_model": scores.model,
            }
            if scene_classifier is not None and set_name in SETS:
                done[label] |= objects_in(made, scene_classifier)
            shown[label] = images[::seeds][:SHOWN]
            write_json(path, result)
        if "plain" in shown:
            columns = {label: shown[label] for label in METHOD_ROWS if label in shown}
            titles = [prompt.text for prompt in set_prompts[:SHOWN]]
            write_grid(out / f"{path.stem}-{set_name}.webp", columns, titles)
    return result


def _requests(prompts: Sequence[SetPrompt], seeds: int) -> list[GenerationRequest]:
    """Pictures of each prompt, all its seeds after each other."""
    return [
        GenerationRequest(prompt.text, seeds * number + seed, entities)
        for number, prompt in enumerate(prompts)
        for entities in [given_entities(prompt.text, prompt.entities) or entities_of(prompt.text)]
        for seed in range(seeds)
    ]


def write_grid(
    path: Path, columns: Mapping[str, Sequence[Image.Image]], titles: Sequence[str]
) -> None:
    """Rows of one picture of each column, under the row's title; equally many of each column."""
    rows = list(zip(*columns.values(), strict=True))
    grid = picture_grid(rows, headings=list(columns), titles=titles, side=128)
    write_bytes(path, encoded(grid, "webp"))


def result_name(model: AlignmentModel) -> str:
    """What a study calls the files of a model: "sd1" for the embedded one, "sdxl" for lab:sdxl."""
    return "sd1" if model.name == EMBEDDED_NAME else slug(model.name.removeprefix(LAB))


READERS: dict[str, Callable[[Path], tuple[SetPrompt, ...]]] = {
    "abc6k": read_abc6k,
    "ae": lambda path: tuple(chain.from_iterable(read_attend_excite(path).values())),
}


def prompts_of(name: str, files: Mapping[str, Path]) -> tuple[SetPrompt, ...]:
    """A set's prompts: generated, or read from the file of ABC-6K or of Attend-and-Excite."""
    check_choice("set", name, (*PROMPT_SETS, *READERS))
    if name in PROMPT_SETS:
        return PROMPT_SETS[name]()
    if name not in files:
        raise ValueError(f"the prompts of {name!r} are in a file; name it: --file {name}=PATH")
    return READERS[name](files[name])


def objects_in(made: Sequence[Generation], classifier: SceneClassifier) -> dict[str, list[str]]:
    """What is in each picture: ``found`` and ``coloured``, a digit an entity: "1" if it is there,
    and if it is there in the colour that the prompt says."""
    classes, colours = look_at(classifier, [picture.image for picture in made])
    likely = presence(classes)
    seen: dict[str, list[str]] = {"found": [], "coloured": []}
    for number, picture in enumerate(made):
        asked = [parsed(entity.text) for entity in picture.entities]
        labels = torch.tensor([label for label, _ in asked], device=classes.device)
        rows = torch.full_like(labels, number)
        shades = colour_of(classes[rows], colours[rows], labels).tolist()
        there = (likely[number, labels] >= PRESENT).tolist()
        right = [colour in (None, shade) for shade, (_, colour) in zip(shades, asked, strict=True)]
        seen["found"].append(digits(there))
        seen["coloured"].append(digits(a and b for a, b in zip(there, right, strict=True)))
    return seen


def digits(flags: Iterable[bool]) -> str:
    """ "101" of True, False, True."""
    return "".join(str(int(flag)) for flag in flags)


def parsed(phrase: str) -> tuple[int, int | None]:
    """The class and the colour, if it says one, of "red palm tree"."""
    names = class_names()
    if phrase in names:
        return names.index(phrase), None
    colour, _, name = phrase.partition(" ")
    if colour not in COLOURS[1:] or name not in names:
        raise ValueError(f"{phrase!r} names no class of the lab")
    return names.index(name), COLOURS.index(colour)
