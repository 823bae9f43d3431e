"""What the page must know before anything is asked: the model, its methods, words and colours."""

from __future__ import annotations

import importlib.util
from typing import Any

import pixalign
from pixalign.backbones.locations import EMBEDDED_NAME, LAB
from pixalign.core.protocols import AlignmentModel
from pixalign.core.provenance import device_name
from pixalign.editing.inversion import INVERSIONS
from pixalign.editing.plan import EDITING_METHODS
from pixalign.explorer.aligning import PAPER, SHARED, methods_of, settings
from pixalign.explorer.requests import MOST_CLASSES
from pixalign.explorer.sessions import MOST_BYTES
from pixalign.generation import GENERATION_METHODS
from pixalign.methods import METHODS
from pixalign.pictures.drawing import HEAT, hex_palette
from pixalign.scenes.atlas import class_names

# What a slider of the strength may be: name, lowest, highest, step.
_SLIDERS = {
    "gamma": ("Strength γ: 1 changes nothing, 1/3 is the paper’s", 0.05, 1.0, 0.01),
    "evidence_strength": ("Strength β of the evidence’s veto", 0.1, 6.0, 0.1),
}


def about(model: AlignmentModel, demo: bool) -> dict[str, Any]:
    """Everything as JSON-able values."""
    ours = model.name.startswith(LAB) or model.name == EMBEDDED_NAME
    record = model.record()
    return {
        "version": pixalign.__version__,
        "demo": demo,
        "model": {"name": model.name, "family": record["family"]},
        "device": device_name(model.backbone.device),
        "words": list(class_names()) if ours else [],
        "methods": [_method(model, name) for name in methods_of(model)],
        "generation": [name for name in GENERATION_METHODS if name != "plain"],
        "editing": list(EDITING_METHODS),
        "inversions": list(INVERSIONS),
        "entities": importlib.util.find_spec("spacy") is not None,
        "coco": importlib.util.find_spec("pycocotools") is not None,
        "most": {"classes": MOST_CLASSES, "bytes": MOST_BYTES},
        "colours": hex_palette(MOST_CLASSES),
        "heat": list(HEAT),
    }


def _method(model: AlignmentModel, name: str) -> dict[str, Any]:
    """A method's name, what it does in a sentence, and its slider, if it has one."""
    if name == PAPER:
        said = "The paper’s own settings: γ = 1/3, losses weighted by the likelihood."
    else:
        said = (METHODS[name].__doc__ or name).strip().split("\n", 1)[0]
    row: dict[str, Any] = {"name": name, "about": said, "shared": name in SHARED, "slider": None}
    field = SHARED.get(name)
    if field is not None:
        label, low, high, step = _SLIDERS[field]
        chosen, config = settings(name, "quick")
        usual = getattr(model.resolve(config, chosen), field)
        row["slider"] = {"label": label, "min": low, "max": high, "step": step, "value": usual}
    return row
