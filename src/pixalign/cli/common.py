"""What all commands share: options, loading a model, printing."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from fractions import Fraction
from itertools import islice
from typing import Annotated, Any, Literal

import typer

from pixalign.backbones.load import DTYPES
from pixalign.config import CALIBRATIONS, PRESETS
from pixalign.core import batching
from pixalign.core.values import Phrase
from pixalign.methods import METHODS
from pixalign.pictures.reading import ImageLike, read_image
from pixalign.text.prompts import occurrences_of

_SCENE_SIDE = 512  # pixels; scenes are shown at 128 to 256


def option(help: str, *names: str, **about: Any) -> Any:
    """An option that says what it is."""
    return typer.Option(*names, help=help, **about)


def one_of(choices: Iterable[str]) -> dict[str, Any]:
    """What makes an option a choice: ``--help`` lists these texts, and no other is taken."""
    known = list(choices)

    def parse(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, known))}.")
        return text

    return {"parser": parse, "metavar": f"<{'|'.join(known)}>"}


def _fraction(text: str) -> float:
    """A number, or two with a slash between them."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{text!r} is no number; such as 0.5 or 1/3") from error


def _passes(text: str) -> int | str:
    """ "auto", or a number; whatever else is refused by the library."""
    size = int(text) if text.isdecimal() else text
    try:
        batching.BatchSize(size)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return size


_MODEL = "Hub id, diffusers folder, .safetensors file or lab:NAME; see `pixalign models`."
Model = Annotated[str | None, option(_MODEL, show_default="the embedded model")]
Device = Annotated[str, option("auto, cpu, cuda (or cuda:1) or mps.")]
Dtype = Annotated[str, option("Number type of the weights; int8 saves memory.", **one_of(DTYPES))]
BatchSize = Annotated[
    Any, option("Passes at once: auto or a number.", parser=_passes, metavar="<auto|int>")
]
Strength = Annotated[
    float | None,
    option("Strength: 1 means none, 1/3 is the paper's.", parser=_fraction, metavar="<number|a/b>"),
]
Memory = Annotated[str, option("low uses smaller batches.", **one_of(batching.MEMORY))]
Seed = Annotated[int, option("Seed of the noise.", min=0)]
Steps = Annotated[int, option("Denoising steps.", min=1)]
_METHODS = one_of(name for name, kind in METHODS.items() if not kind.supervised)
Preset = Annotated[str, option("Settings to start from.", **one_of(PRESETS))]
Method = Annotated[
    str | None,
    option("How heatmaps are made.", show_default="the preset's, else dense", **_METHODS),
]
Calibrate = Annotated[
    str | None,
    option("What calibrates a baseline's maps.", show_default="none", **one_of(CALIBRATIONS)),
]
Resize = Annotated[Literal["square", "keep"] | None, option("Square, or keep the picture's shape.")]
Guidance = Annotated[
    float | None, option("Guidance.", show_default="the family's, such as 7.5 or SDXL's 5")
]
Json = Annotated[bool, option("Print only JSON to stdout.", "--json")]


def load_model(
    model: str | None,
    device: str,
    dtype: str = "auto",
    batch_size: int | str = "auto",
    memory: str = "normal",
    progress: bool = True,
    settings: Any = None,
    lora: Any = None,
) -> Any:
    """`pixalign.load` for a command: bars are only for those who watch."""
    from pixalign.backbones.load import hide_loading_bars
    from pixalign.model import load

    if not (progress and sys.stderr.isatty()):
        hide_loading_bars()
    options: dict[str, Any] = {"dtype": dtype, "batch_size": batch_size, "memory": memory}
    options |= {"settings": settings, "lora": lora}
    return load(model, device=device, progress=progress, **options)


def vocabulary_notes(
    model: str | None, phrases: Iterable[Phrase], images: Iterable[ImageLike] = ()
) -> list[str]:
    """What to say of classes that the embedded model, or another of the lab, has never seen.

    Of images, the first that looks like none of the scenes that it knows is told too.
    """
    from pixalign.backbones.locations import LAB
    from pixalign.scenes.atlas import class_names

    if model is not None and not model.startswith(LAB):
        return []
    known, notes = class_names(), []
    for phrase in phrases:
        if not any(occurrences_of(name, phrase.phrase) for name in known):
            close = get_close_matches(phrase.name.lower(), known, 3, 0.6)
            hint = f" (such as {', '.join(close)})" if close else ""
            notes.append(f"{phrase.name!r} is not among the {len(known)} classes it knows{hint}")
    notes += list(islice(filter(None, map(_no_scene, images)), 1))
    if notes:
        about = "the small model knows only emoji scenes (`pixalign classes scenes` lists them)"
        notes.append(f"{about}; for photographs, choose a model with --model")
    return notes


def _no_scene(image: ImageLike) -> str | None:
    """What to say of a picture that is none of the lab's scenes; None if it may be one."""
    from pixalign.scenes.likeness import like_a_photograph

    picture = read_image(image)
    if max(picture.size) > _SCENE_SIDE or like_a_photograph(picture):
        return f"a picture of {picture.width} by {picture.height} pixels may be a photograph"
    return None


def print_warnings(messages: Iterable[str]) -> None:
    """A line each, on stderr."""
    for message in messages:
        print(f"warning: {message}", file=sys.stderr)


def print_json(record: Any) -> None:
    """To stdout, for other programs."""
    print(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def said_plainly() -> Iterator[None]:
    """Our own warnings, one line each on stderr after the work; other libraries' are not shown."""
    said: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
    finally:
        ours = (UserWarning, RuntimeWarning)
        told = (w.message for w in said if w.category in ours and "pixalign" in w.filename)
        print_warnings(dict.fromkeys(map(str, told)))
