"""What a model knows: where it connects words with pixels, where it fails, before and after."""

from pixalign.audit.run import audit
from pixalign.audit.sources import MaskedPictures, PlainPictures, Prompts, read_prompts

__all__ = ["MaskedPictures", "PlainPictures", "Prompts", "audit", "read_prompts"]
