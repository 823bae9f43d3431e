"""Whether a network was distilled into one that answers as if guided, by what its pipeline says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FEW_STEPS = 8  # of a pipeline's default: undistilled ones take 20 or more
_SCHEDULERS = ("LCMScheduler", "TCDScheduler", "SCMScheduler")
_NAMES = frozenset(
    "turbo lightning schnell hyper lcm tcd pcm dmd sprint flash distill distilled".split()
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_UNDONE = re.compile(r"(de|un)[-_ ]?distill\w*", re.IGNORECASE)


def signs_of_distillation(pipe: Any, network: Any, name: str = "") -> Iterator[str]:
    """What says that a pipeline's network was distilled, the surest first.

    ``name`` is what it was loaded by, beside the names that the pipeline itself remembers.
    """
    from diffusers.utils import USE_PEFT_BACKEND

    if pipe.config.get("is_distilled"):
        yield "its pipeline is marked as distilled"
    scheduler = type(pipe.scheduler).__name__
    if scheduler in _SCHEDULERS:
        yield f"its scheduler is a {scheduler}"
    steps = inspect.signature(type(pipe).__call__).parameters["num_inference_steps"].default
    if steps <= FEW_STEPS:
        yield f"{type(pipe).__name__} takes {steps} steps unless told otherwise"
    adaptable = USE_PEFT_BACKEND and hasattr(pipe, "get_active_adapters")  # diffusers needs peft
    adapters = pipe.get_active_adapters() if adaptable else []
    remembered = (part.config.get("_name_or_path") for part in (pipe, network))
    for known in filter(None, (name, *remembered, *adapters)):
        if words := _NAMES & _words(str(known)):
            yield f"its name, {_short(str(known))!r}, says {min(words)!r}"


def _short(name: str) -> str:
    """A file's or folder's own name, or the hub id of a snapshot in the hub's cache."""
    parts = Path(name).parts
    cached = [part for part in parts if part.startswith("models--")]
    return cached[0].removeprefix("models--").replace("--", "/") if cached else parts[-1]


def _words(name: str) -> set[str]:
    """The words of a name, in lower case: of "XLTurbo_v2" xl, turbo and v."""
    return {word.lower() for word in _WORD.findall(_UNDONE.sub("", _short(name)))}
