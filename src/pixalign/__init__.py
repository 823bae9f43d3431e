"""pixalign: how strongly a frozen text-to-image model connects each pixel with each phrase."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pixalign.alignment.request import EncodedImage
    from pixalign.alignment.result import Alignment
    from pixalign.alignment.trust import Trust
    from pixalign.attention.capture import WordMaps
    from pixalign.config import AlignConfig
    from pixalign.core.values import Phrase
    from pixalign.editing import Edit
    from pixalign.generation import Generation
    from pixalign.model import Model, load

__version__ = "0.4.0"

__all__ = [
    "AlignConfig",
    "Alignment",
    "Edit",
    "EncodedImage",
    "Generation",
    "Model",
    "Phrase",
    "Trust",
    "WordMaps",
    "load",
]

# Loaded when first asked for, so that the command line answers before torch is there.
_HOMES = {
    "AlignConfig": "config",
    "Alignment": "alignment.result",
    "Edit": "editing",
    "EncodedImage": "alignment.request",
    "Generation": "generation",
    "Model": "model",
    "Phrase": "core.values",
    "Trust": "alignment.trust",
    "WordMaps": "attention.capture",
    "load": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
