"""pixalign: how strongly a frozen text-to-image model connects each pixel with each phrase."""

from pixalign.alignment.aligner import Aligner, EncodedImage
from pixalign.alignment.result import Alignment
from pixalign.attention.capture import WordMaps, capture
from pixalign.config import AlignConfig
from pixalign.core.values import Phrase
from pixalign.editing import Edit, edit
from pixalign.generation import Generation, generate

__version__ = "0.1.0"

__all__ = [
    "AlignConfig",
    "Aligner",
    "Alignment",
    "Edit",
    "EncodedImage",
    "Generation",
    "Phrase",
    "WordMaps",
    "capture",
    "edit",
    "generate",
]
