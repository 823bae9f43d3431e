"""Compositional generation: pictures of prompt sets by every method, and how well they show them.

Every method draws from the same noise; a CLIP says how well picture and prompt go together. Who
sees what is in a picture may say so too, as the lab's classifier does (``lab/generation.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pixalign.backbones import Backbone
from pixalign.backbones.fingerprint import fingerprint
from pixalign.backbones.locations import EMBEDDED_NAME, LAB
from pixalign.bench.clock import Clock
from pixalign.bench.metrics import bootstrap_weights, clip_score, interval
from pixalign.core.checks import check_choice
from pixalign.core.files import make_folder, read_json, slug, write_bytes, write_json
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name, versions
from pixalign.generation.methods import GenerationMethod
from pixalign.generation.plan import GenerationRequest, GenerationSettings
from pixalign.generation.prompt_sets import PROMPT_SETS, SetPrompt, read_abc6k, read_attend_excite
from pixalign.generation.result import Generation
from pixalign.generation.run import GENERATION_METHODS, draw_requests
from pixalign.pictures.grid import picture_grid
from pixalign.pictures.reading import read_image
from pixalign.pictures.saving import encoded
from pixalign.text.entities import entities_of, given_entities

SHOWN = 12  # prompts whose pictures are shown: the first ones
CLIP = "openai/clip-vit-base-patch32"  # whose score the released script takes

Row = tuple[type[GenerationMethod], float]  # a method and its strength
METHOD_ROWS: dict[str, Row] = {
    name: (GENERATION_METHODS[name], 1.2) for name in ("plain", "attend-excite", "syngen", "elbo")
}
# What is known of pictures, a list of values by name; and a figure of a row: one value a picture.
Observer = Callable[[Sequence[Generation]], Mapping[str, Sequence[Any]]]
Figure = Callable[[Mapping[str, Any]], Sequence[float]]


def run_generation_study(
    model: AlignmentModel,
    out: Path,
    *,
    sets: Mapping[str, Sequence[SetPrompt]],
    seeds: int,
    clip: str = CLIP,
    rows: Mapping[str, Row] = MappingProxyType(METHOD_ROWS),
    steps: int = 50,
    observe: Observer | None = None,
) -> dict[str, Any]:
    """Draw each prompt of each set, ``seeds`` times, by those of the methods that know the model.

    ``clip`` names the model of the CLIP score, and what ``observe`` says of a row's pictures is
    kept with it. Writes ``out``/NAME.json, in which finished rows are kept and not run again, and
    ``out``/NAME-SET.webp with the pictures of the first prompts.
    """
    backbone = model.backbone
    asked = {
        "model": model.name,
        "weights": fingerprint(backbone.pipe),
        "prompts": max(map(len, sets.values())),
        "seeds": seeds,
        "steps": steps,
        "guidance": backbone.guidance,
        "dtype": model.record()["dtype"],
        "clip": clip,
    }
    path = make_folder(out) / f"{result_name(model)}.json"
    about = {"device": device_name(backbone.device), "versions": versions()}
    result: dict[str, Any] = {**asked, **about, "texts": {}, "sets": {}}
    if path.is_file():
        result = _kept(path)
        if None in (result.setdefault("weights", None), asked["weights"]):  # not known
            asked["weights"] = result["weights"]
    for set_name, prompts in sets.items():
        known = result["texts"].setdefault(set_name, _digest(prompts))
        if result | asked != result or known != _digest(prompts):
            raise ValueError(f"{str(path)!r} holds pictures of other settings; move it away")
    for set_name, prompts in sets.items():
        done = result["sets"].setdefault(set_name, {})
        for label, (method, strength) in rows_for(backbone, rows).items():
            if label in done:
                continue
            requests = _requests(prompts, seeds)
            settings = GenerationSettings(steps, backbone.guidance, strength)
            clock = Clock(backbone.device)
            with clock.charged({label: 1 / len(requests)}):
                made = draw_requests(model, requests, settings, method, label=label)
            images, device = [picture.image for picture in made], str(backbone.device)
            scores = clip_score(images, [p.prompt for p in made], model=clip, device=device)
            done[label] = {
                "seconds": round(clock.rows[label], 4),
                "clip": [round(float(score), 2) for score in scores.scores],
                "clip_model": scores.model,
                **(observe(made) if observe else {}),
            }
            _keep_shown(out / f"{path.stem}-{set_name}-{label}.png", images[::seeds][:SHOWN])
            write_json(path, result | {"sha256": _checksum(result)})
        _write_shown(out, f"{path.stem}-{set_name}", [prompt.text for prompt in prompts[:SHOWN]])
    return result


def _keep_shown(path: Path, images: Sequence[Image.Image]) -> None:
    """Pictures of one size in a row, for a grid that a later call may have to make."""
    write_bytes(path, encoded(picture_grid([images], gap=0)))


def _write_shown(out: Path, name: str, titles: Sequence[str]) -> None:
    """NAME.webp of what `_keep_shown` has kept of plain sampling and others, which goes then."""
    kept = {label: path for label in METHOD_ROWS if (path := out / f"{name}-{label}.png").is_file()}
    if "plain" in kept:
        columns = {}
        for label, path in kept.items():
            row = read_image(path)
            width = row.width // len(titles)
            boxes = [(width * n, 0, width * (n + 1), row.height) for n in range(len(titles))]
            columns[label] = [row.crop(box) for box in boxes]
        write_grid(out / f"{name}.webp", columns, titles)
    for path in kept.values():  # plain's first: without it a grid of the rest is not made
        path.unlink()


def _kept(path: Path) -> dict[str, Any]:
    """What a study has written, if it is as it was written."""
    result = read_json(path)
    if not isinstance(result, dict) or not {"texts", "sets"} <= result.keys():
        raise ValueError(f"{str(path)!r} is damaged: it is no study; move it away")
    known = result.pop("sha256", None)  # none in files of older versions
    if known not in (None, _checksum(result)):
        raise ValueError(f"{str(path)!r} is damaged: its figures have changed; move it away")
    return result


def _checksum(result: Mapping[str, Any]) -> str:
    text = json.dumps({**result, "sha256": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def rows_for(backbone: Backbone, rows: Mapping[str, Row]) -> dict[str, Row]:
    """Those whose method knows the model's family."""
    known = {}
    for label, row in rows.items():
        with suppress(ValueError):
            row[0].check(backbone)
            known[label] = row
    return known


def _digest(prompts: Sequence[SetPrompt]) -> str:
    return hashlib.sha256("\n".join(prompt.text for prompt in prompts).encode()).hexdigest()


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


# ---- figures ----

CLIP_FIGURE: dict[str, Figure] = {"clip": lambda row: row["clip"]}  # 100 times a cosine


def summarise_generation(
    result: Mapping[str, Any], figures: Mapping[str, Figure] = CLIP_FIGURE, draws: int = 1000
) -> dict[str, Any]:
    """By set and row: each figure's mean over the pictures with its 95 % interval over prompts,
    and its paired difference to plain sampling; and the seconds of a picture beside plain's."""
    seeds = result["seeds"]
    summary: dict[str, Any] = {}
    for set_name, rows in result["sets"].items():
        shares = resampled(len(rows["plain"]["clip"]) // seeds, draws)
        means = {
            label: {
                name: torch.tensor(figure(row), dtype=torch.float64).reshape(-1, seeds).mean(1)
                for name, figure in figures.items()
            }
            for label, row in rows.items()
        }
        summary[set_name] = {
            label: {
                **compared(values, means["plain"], "plain", shares),
                "seconds": rows[label]["seconds"],
                "cost": rows[label]["seconds"] / rows["plain"]["seconds"],
            }
            for label, values in means.items()
        }
    return summary


def resampled(count: int, draws: int) -> Tensor:
    """float64 [draws, count]: the share of each of ``count`` prompts in resamples of them."""
    weights = bootstrap_weights(count, draws)
    return weights / weights.sum(1, keepdim=True)


def compared(
    values: Mapping[str, Tensor], base: Mapping[str, Tensor], name: str, shares: Tensor
) -> dict[str, Any]:
    """Each figure [P] of a row with its interval, and its paired difference to the row ``name``."""
    entry = {}
    for figure, each in values.items():
        entry[figure] = with_interval(each, shares)
        entry[f"{figure}_minus_{name}"] = with_interval(each - base[figure], shares)
    return entry


def with_interval(each: Tensor, shares: Tensor) -> dict[str, float]:
    """The mean of values [P], and its 95 % interval over resamples of shares [draws, P]."""
    low, high = interval(shares @ each)
    return {"value": float(each.mean()), "low": low, "high": high}


def format_generation(
    result: Mapping[str, Any], figures: Mapping[str, Figure] = CLIP_FIGURE
) -> str:
    """By set and method: each figure, its difference to plain sampling, and the cost."""
    titles = "".join(f"{name:>9}{'- plain':>24}" for name in figures)
    lines = []
    for set_name, rows in summarise_generation(result, figures).items():
        lines.append(f"{set_name:<18}{titles}{'cost':>7}")
        for label, row in rows.items():
            cells = "".join(
                f"{row[name]['value']:>9.2f}{spread(row[f'{name}_minus_plain'], '+.2f'):>24}"
                for name in figures
            )
            lines.append(f"{label:<18}{cells}{row['cost']:>7.1f}")
    each = f"the first {result['prompts']} prompts of each set, {result['seeds']} pictures each"
    lines.append(f"{each}; cost in pictures drawn plainly")
    return "\n".join(lines)


def spread(entry: Mapping[str, float], form: str) -> str:
    """ "1.5 (1.0 to 2.0)": a value and its interval, each in that format."""
    return f"{entry['value']:{form}} ({entry['low']:{form}} to {entry['high']:{form}})"
