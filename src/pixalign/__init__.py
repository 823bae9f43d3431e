"""pixalign: how strongly a frozen text-to-image model connects each pixel with each phrase."""

from pixalign.alignment.request import EncodedImage
from pixalign.alignment.result import Alignment
from pixalign.alignment.trust import Trust
from pixalign.attention.capture import WordMaps
from pixalign.config import AlignConfig
from pixalign.core.values import Phrase
from pixalign.editing import Edit
from pixalign.generation import Generation
from pixalign.model import Model, load

__version__ = "0.3.0"

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
