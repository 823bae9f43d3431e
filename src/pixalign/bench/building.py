"""A dataset of drawn pictures with masks, in the layout of AEP: draw, annotate, keep, resume."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pixalign.backbones.fingerprint import fingerprint
from pixalign.bench.annotating import Annotation, Annotator, Belief
from pixalign.bench.contact_sheet import contact_sheet
from pixalign.bench.datasets.layouts import MOST
from pixalign.bench.metrics import IGNORE
from pixalign.core.changes import check_unchanged
from pixalign.core.checks import brief
from pixalign.core.files import (
    held_alone,
    make_folder,
    read_json,
    read_text,
    sweep,
    write_json,
    write_text,
)
from pixalign.core.progress import Progress
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import versions
from pixalign.core.values import Phrase
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.prompt_sets import SetPrompt
from pixalign.generation.result import Generation
from pixalign.generation.run import GENERATION_METHODS, draw_requests
from pixalign.pictures.drawing import palette
from pixalign.pictures.saving import mask_image, write_png
from pixalign.text.entities import Entity, entities_of, given_entities

_FORMAT = 1
AEP_COUNT = 741  # pictures of the paper's set
STATE, HEADER, SUMMARY, SHEET = "run", "settings.json", "build.json", "sheet.png"
_SHAPE = 'allowed: a list of {"prompt": text, "subject": [class, ...], "phrase": [words, ...]}'


@dataclass(frozen=True)
class BuildPrompt:
    """A prompt, the classes that it names, and the words of each."""

    text: str
    classes: tuple[Phrase, ...]

    @classmethod
    def of(cls, prompt: SetPrompt) -> BuildPrompt:
        """From a prompt of a set; a class is the entity's noun."""
        found = given_entities(prompt.text, prompt.entities) or entities_of(prompt.text)
        return cls.named(
            prompt.text, [(prompt.text[slice(*each.head)], each.text) for each in found]
        )

    @classmethod
    def named(cls, text: str, pairs: Sequence[tuple[str, str]]) -> BuildPrompt:
        """From (class, words); of a class that stands twice, the first words."""
        first = dict(reversed([(name.lower(), words) for name, words in pairs]))
        order = dict.fromkeys(name.lower() for name, _ in pairs)
        if not order:
            raise ValueError(f"prompt {brief(text)} names nothing that could be annotated")
        return cls(text, tuple(Phrase(name, first[name]) for name in order))


@dataclass(frozen=True)
class BuildRequest:
    """What to make: a picture a prompt, and how it is drawn.

    Picture n draws its noise from ``seed`` + n. ``together`` are drawn at once, and lost at once
    by a kill. ``source`` and ``licence`` are written down, in the user's words.
    """

    prompts: tuple[BuildPrompt, ...]
    source: str
    method: str = "plain"
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    seed: int = 0
    licence: str | None = None
    together: int = 1

    def __post_init__(self) -> None:
        if not self.prompts or self.together < 1:
            raise ValueError(
                f"there are {len(self.prompts)} prompts, {self.together} drawn together; allowed: "
                "1 or more"
            )
        if len(self.classes) > MOST:
            raise ValueError(f"the prompts name {len(self.classes)} classes; allowed: 1 to {MOST}")

    @property
    def classes(self) -> tuple[str, ...]:
        """All that the prompts name, sorted."""
        return tuple(sorted({each.name for prompt in self.prompts for each in prompt.classes}))

    def header(self, model: AlignmentModel, annotator: Annotator, belief: Belief) -> dict[str, Any]:
        """What pictures and masks depend on, as plain values."""
        about = model.record()
        about.pop("device", None)
        texts = [[p.text, [asdict(each) for each in p.classes]] for p in self.prompts]
        drawing = {"method": self.method, "seed": self.seed, **asdict(self.settings)}
        header = {
            "format": _FORMAT,
            "model": {**about, "weights": fingerprint(model.backbone.pipe)},
            "drawing": drawing,
            "prompts": {
                "source": self.source,
                "count": len(texts),
                "sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            },
            "annotator": annotator.record(),
            "belief": asdict(belief),
            "licence": self.licence,
        }
        plain: dict[str, Any] = json.loads(json.dumps(header))
        return plain


def read_build_prompts(path: Path) -> tuple[BuildPrompt, ...]:
    """Prompts of a file: .json says their classes; of text, a prompt a line, spaCy finds them."""
    if path.suffix.lower() != ".json":
        lines = [line.strip() for line in read_text(path).splitlines()]
        return tuple(BuildPrompt.of(SetPrompt(line, ())) for line in lines if line)
    content = read_json(path)
    if not isinstance(content, list):
        raise ValueError(f"{str(path)!r} holds a {type(content).__name__}; {_SHAPE}")
    return tuple(_prompt(entry, path) for entry in content)


def _prompt(entry: Any, path: Path) -> BuildPrompt:
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
        raise ValueError(f"{str(path)!r} holds {brief(entry)}; {_SHAPE}")
    subjects, phrases = (_words(entry, name, path) for name in ("subject", "phrase"))
    if len(subjects) != len(phrases):
        raise ValueError(f"{str(path)!r} holds {brief(entry)}; {_SHAPE}, equally long")
    return BuildPrompt.named(entry["prompt"], list(zip(subjects, phrases, strict=True)))


def _words(entry: Mapping[str, Any], name: str, path: Path) -> list[str]:
    words = entry.get(name)
    if not isinstance(words, list) or not all(isinstance(w, str) and w.strip() for w in words):
        raise ValueError(f"{str(path)!r} holds {brief(entry)}; {_SHAPE}")
    return words


def build_dataset(
    model: AlignmentModel,
    annotator: Annotator,
    request: BuildRequest,
    out: Path,
    belief: Belief = Belief(),  # noqa: B008
    show: bool = False,
) -> dict[str, Any]:
    """Draw and annotate what is not yet there; what build.json says of the whole.

    Finished pictures are kept, and a call with other settings is refused. A picture in which
    nothing is believed comes to left_out/ and is not of the dataset.
    """
    state = make_folder(out) / STATE
    with held_alone(state):
        header = request.header(model, annotator, belief)
        if (state / HEADER).is_file():
            check_unchanged(read_json(state / HEADER), header, out, "pictures")
        else:
            write_json(state / HEADER, header)
        folders = [make_folder(out / name) for name in ("images", "annotations", "left_out")]
        for folder in (out, state, *folders):  # nobody else writes there now
            sweep(folder, older=0)
        todo = [n for n in range(len(request.prompts)) if _record(out, n) is None]
        try:
            with Progress(len(todo), "build", show, "picture") as progress:
                for number, made in _drawn(model, request, todo):
                    _annotate(made, number, annotator, request, belief, out)
                    progress.advance(1)
        finally:
            summary = _conclude(request, header, out)
    return summary


def _drawn(
    model: AlignmentModel, request: BuildRequest, todo: Sequence[int]
) -> Iterator[tuple[int, Generation]]:
    """The pictures to do, with their numbers; some are drawn together."""
    kind = GENERATION_METHODS[request.method]
    kind.check(model.backbone)
    for first in range(0, len(todo), request.together):
        numbers = todo[first : first + request.together]
        asked = [
            GenerationRequest(request.prompts[n].text, request.seed + n, _entities(request, n))
            for n in numbers
        ]
        made = draw_requests(model, asked, request.settings, kind)
        yield from zip(numbers, made, strict=True)


def _entities(request: BuildRequest, number: int) -> tuple[Entity, ...]:
    prompt = request.prompts[number]
    if not GENERATION_METHODS[request.method].needs:
        return ()
    return given_entities(prompt.text, [each.phrase for each in prompt.classes])


def _annotate(
    made: Generation,
    number: int,
    annotator: Annotator,
    request: BuildRequest,
    belief: Belief,
    out: Path,
) -> None:
    """Write a picture's mask, the picture, and last the record that says it is done."""
    prompt, name = request.prompts[number], _name(number)
    believed = belief.applied(annotator.annotate(made.image, prompt.classes, made.seed))
    kept = believed.annotated
    if any(kept):
        mask = mask_image(_labels(believed, request.classes), _colours(request.classes))
        write_png(out / "annotations" / f"{name}_gt.png", mask)
    write_png(out / ("images" if any(kept) else "left_out") / f"{name}.png", made.image)
    objects = [
        {**asdict(said), "annotated": own} for said, own in zip(believed.objects, kept, strict=True)
    ]
    ignored = round(float((believed.mask == IGNORE).mean()), 6)
    about = {"prompt": prompt.text, "seed": made.seed, "ignored": ignored, "objects": objects}
    write_json(out / STATE / f"{name}.json", about)


def _labels(annotation: Annotation, classes: Sequence[str]) -> np.ndarray:
    """The mask with 1 + a class's place in the list."""
    table = np.full(256, IGNORE, dtype=np.uint8)
    table[0] = 0
    for number, said in enumerate(annotation.objects, 1):
        table[number] = 1 + classes.index(said.name)
    labels: np.ndarray = table[annotation.mask]
    return labels


def _colours(classes: Sequence[str]) -> np.ndarray:
    """uint8 [256, 3]: the palette of the classes; 255 is white."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    colours[: len(classes) + 1] = palette(len(classes))
    colours[IGNORE] = 255
    return colours


def _name(number: int) -> str:
    return f"generate_{number:04d}"


def _record(out: Path, number: int) -> dict[str, Any] | None:
    """What is known of a finished picture; None where it, or a file of it, is not there."""
    name = _name(number)
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        record: dict[str, Any] = read_json(out / STATE / f"{name}.json")
        left_out = not any(each["annotated"] for each in record["objects"])
        files = [out / ("left_out" if left_out else "images") / f"{name}.png"]
        files += [] if left_out else [out / "annotations" / f"{name}_gt.png"]
        if all(path.is_file() for path in files):
            return record
    return None


def _conclude(request: BuildRequest, header: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write phrases, classes, the summary and the contact sheet of what is finished."""
    records = {_name(n): _record(out, n) for n in range(len(request.prompts))}
    done = {name: record for name, record in records.items() if record is not None}
    phrases, verdicts = {}, Counter[str]()
    asked, annotated = Counter[str](), Counter[str]()
    for name, record in done.items():
        objects = record["objects"]
        kept = [each for each in objects if each["annotated"]]
        verdicts.update(each["verdict"] or "none" for each in objects)
        asked.update(each["name"] for each in objects)
        annotated.update(each["name"] for each in kept)
        if kept:
            columns = {"subject": "name", "phrase": "phrase"}
            phrases[f"{name}.png"] = {k: [each[v] for each in kept] for k, v in columns.items()}
    summary = {
        **header,
        "versions": versions(),
        "pictures": len(phrases),
        "left_out": len(done) - len(phrases),
        "of": len(request.prompts),
        "objects": {"asked": asked.total(), "annotated": annotated.total()},
        "ignored": round(float(np.mean([r["ignored"] for r in done.values()])), 6) if done else 0.0,
        "verdicts": dict(sorted(verdicts.items())),
        "objects_by_class": {c: [annotated[c], asked[c]] for c in request.classes},
        "records": done,
    }
    write_text(out / "classes.txt", "\n".join(request.classes) + "\n")
    write_json(out / "phrases.json", phrases)
    if phrases:
        write_png(out / SHEET, contact_sheet(out, list(phrases), done, request.classes))
    write_json(out / SUMMARY, summary)
    return summary
