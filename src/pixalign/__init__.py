"""pixalign: how strongly a frozen text-to-image model connects each pixel with each phrase."""

from pixalign.align import Aligner, EncodedImage
from pixalign.alignment import Alignment
from pixalign.capture import WordMaps, capture
from pixalign.config import AlignConfig
from pixalign.editing import Edit, edit
from pixalign.generation import Generation, generate
from pixalign.types import Phrase

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
